"""Models, data sets and bundles small enough for a test."""
