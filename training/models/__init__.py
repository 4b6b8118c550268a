"""Torch models: encoders, n-grams, tokens and sharded tables."""
