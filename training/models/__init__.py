"""Torch models: encoders, n-grams, token tables, sharded tables and mixtures of weights."""
