"""The reranker: trees that reorder the labels that the memory ranks first."""
