"""Metrics, predictions for many rows, and results on disk."""
