"""The training loop: setup, steps, state on disk, and the choices at the end."""
