"""Maintenance of a label log: verify it, cut its beginning, recover undamaged events."""
