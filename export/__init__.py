"""Keymatch export: a checkpoint and a data set become one verified bundle."""
