"""Random histories of the memory, compared with oracles that get the same changes."""
