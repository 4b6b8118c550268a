"""Keymatch offline: data sets, metrics, evaluation and training."""
