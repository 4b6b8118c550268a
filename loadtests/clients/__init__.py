"""HTTP clients that take little CPU time from the server: open loops, and a flood."""
