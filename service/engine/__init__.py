"""The engine: admission, the read path, the write path and administration of one process."""
