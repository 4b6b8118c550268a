"""Worker processes and the supervisor that starts and replaces them."""
