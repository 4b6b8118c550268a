"""Writes on a busy machine: their speed, their cost for queries, and the memory afterwards."""
