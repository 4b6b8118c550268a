"""The knowledge memory: immutable views, live rows, sealed segments and snapshots."""
