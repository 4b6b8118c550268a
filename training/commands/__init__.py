"""The commands of `python -m training`: one file each, which parses, calls and prints."""
