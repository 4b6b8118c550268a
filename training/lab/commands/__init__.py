"""Commands of `keymatch lab`; each file parses arguments, calls the code and prints."""
