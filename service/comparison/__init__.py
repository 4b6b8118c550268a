"""Compares the answers of two bundles to the same queries."""
