"""Keymatch online: the HTTP service around the retrieval core."""
