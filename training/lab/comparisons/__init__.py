"""Comparisons as TOML files, and their reader (`training.lab.comparisons.comparison`)."""
