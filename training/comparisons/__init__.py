"""Comparisons as TOML, see `training.comparisons.comparison`."""
