"""The commands of `python -m export`: each parses its options, calls one room, and prints."""
