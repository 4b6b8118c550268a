"""Files and folders that appear whole or not at all.

Everything Keymatch writes goes to a temporary name beside its target, is synced, and is renamed.
A crash leaves at worst a `.NAME.partial-*` entry, which no reader ever looks at.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.core.errors import InvalidData


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` when the block ends without an exception.

    Raises `InvalidData` when `target` exists (nothing is ever overwritten) or its parent cannot
    be written.
    """
    target = target.absolute()
    refuse_existing(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    except OSError as error:
        raise InvalidData(target, f"cannot be written: {error.strerror}") from error
    partial.chmod(0o755)  # mkdtemp's own 0o700 would keep other readers out
    try:
        yield partial
        for path in sorted(partial.rglob("*")):
            sync(path)
        sync(partial)
        refuse_existing(target)
        partial.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def discard_partial(target: Path) -> None:
    """Remove what a process that was killed has left of the folder `target`."""
    for partial in target.parent.glob(f".{target.name}.partial-*"):
        shutil.rmtree(partial, ignore_errors=True)


def write_file(target: Path, content: bytes) -> None:
    """Replace `target` by `content` in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{target.name}.partial-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).chmod(0o644)
        Path(partial).replace(target)
        sync(target.parent)
    finally:
        Path(partial).unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Force a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_existing(target: Path) -> None:
    """Raise `InvalidData` when `target` is taken; for long work, ask before it starts."""
    if target.exists() or target.is_symlink():
        raise InvalidData(target, "exists already; name a new folder or remove this one first")
