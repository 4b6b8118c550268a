"""The way of a query through the engine: admission by delay, the queue, and answering threads."""
