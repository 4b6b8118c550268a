"""The commands of `keymatch export`: each parses its options, calls one package, and prints."""
