"""The second ranking: trees order the labels that the memory ranks first once more."""
