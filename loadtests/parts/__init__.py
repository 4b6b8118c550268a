"""Commands that measure one part at a time, without a server."""
