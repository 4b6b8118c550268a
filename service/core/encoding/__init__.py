"""Encodes texts as unit vectors, and new labels and instances as rows of the memory."""
