"""Prediction with RAE-XMC: retrieve, weigh, vote, rank."""
