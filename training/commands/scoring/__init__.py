"""The command `score` and its parts."""
