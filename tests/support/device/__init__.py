"""A simulated GPU, and vectors to search on it."""
