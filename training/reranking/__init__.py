"""A second ranking: trees that learn to order the memory's best labels again."""
