"""HTTP clients that take little processor time from the server: one connection, an open loop, a
closed loop."""
