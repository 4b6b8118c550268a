"""Client-side checks of the HTTP API: answers, errors and streams."""
