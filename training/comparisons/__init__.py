"""Comparisons as TOML, and what reads them (`training.comparisons.comparison`)."""
