"""Texts to unit vectors, and new labels and instances to rows of the memory."""
