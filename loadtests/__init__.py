"""Load tests and benchmarks: they start a server of their own on loopback and always stop it."""
