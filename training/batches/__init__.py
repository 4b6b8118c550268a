"""Batches: which instances and labels are contrasted, and in which order."""
