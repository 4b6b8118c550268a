"""The way of a write: encoding, one queue, one writer thread, label log, memory."""
