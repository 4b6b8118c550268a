"""Measurements: traffic against a running server, recall, memory and file sizes."""
