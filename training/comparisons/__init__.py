"""Comparisons as TOML, see `training.comparison`."""
