"""A query's way through the engine: admission by delay, the queue, and the answering threads."""
