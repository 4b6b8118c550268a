"""A reranker: trees that learn to order the memory's best labels."""
