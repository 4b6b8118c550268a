"""Prediction with RAE-XMC: retrieve keys, weigh them, let them vote, rank the labels."""
