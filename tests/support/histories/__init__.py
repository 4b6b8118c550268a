"""Random histories of the memory, beside oracles that are changed alike."""
