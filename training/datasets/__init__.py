"""Data sets: readers, writers and splits."""
