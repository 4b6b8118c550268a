"""Choices made on held-out rows: the memory's settings, and how to represent novel labels."""
