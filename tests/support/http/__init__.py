"""The HTTP API from a client's side: answers, refusals and streams."""
