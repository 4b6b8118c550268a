"""Encoding, searching and serving with `device = "cuda"`, compared with the CPU."""
