"""The training loop: setup, steps, saved state, and the choices at the end."""
