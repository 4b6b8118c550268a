"""A stand-in for a GPU, and vectors to search on it."""
