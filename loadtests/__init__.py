"""Load tests and benchmarks: each starts its own server on loopback, and always stops it."""
