"""Commands of `keymatch`, one file each: parse options, call the service's code, print."""
