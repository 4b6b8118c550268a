"""Answers many queries from a file, without a server."""
