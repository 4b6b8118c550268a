"""A write's way through the engine: encoding, one queue, one writer thread, label log, memory."""
