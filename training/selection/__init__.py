"""Choices on held-out rows: validation, and how novel labels are represented."""
