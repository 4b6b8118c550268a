"""Commands of `keymatch`; each file parses arguments, calls the code and prints."""
