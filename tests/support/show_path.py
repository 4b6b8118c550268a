"""Prints Python's path, a folder a line; tests run it as a child process."""

import sys

if __name__ == "__main__":
    sys.stdout.write("\n".join(sys.path))
