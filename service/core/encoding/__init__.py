"""Texts to unit vectors, and the vectors of new labels and instances."""
