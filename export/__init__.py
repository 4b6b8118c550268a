"""Keymatch export: checkpoints become exported encoders, and those with a data set bundles."""
