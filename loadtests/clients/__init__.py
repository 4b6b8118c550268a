"""HTTP clients that cost the server's cores little: one connection, an open loop, a closed loop."""
