"""Find the child processes of a process in /proc."""

from pathlib import Path


def child_processes(parent: int, word: str) -> list[int]:
    """Return the ids of the children of `parent` whose command line contains `word`, ascending."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            its_parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has just ended
        if its_parent == parent and word.encode() in words:
            found.append(int(folder.name))
    return sorted(found)
