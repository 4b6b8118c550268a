"""Exact search, the interface of frozen segments, and the live and sealed parts of a memory."""
