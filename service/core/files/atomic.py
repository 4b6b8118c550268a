"""Files and folders that appear complete or not at all.

Content is written under a temporary name next to its target, synced to disk, and renamed. A crash
leaves at worst a `.NAME.partial-*` entry, which no reader opens.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from service.core.errors import InvalidData


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` when the block ends without an exception.

    Raises `InvalidData` if `target` exists (it is never overwritten) or its parent cannot be
    written.
    """
    target = target.absolute()
    refuse_existing(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    except OSError as error:
        raise _unwritable(target, error) from error
    partial.chmod(0o755)  # mkdtemp's 0o700 would keep other users from reading
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
    """Remove the temporary folders that a killed process has left next to `target`."""
    for partial in target.parent.glob(f".{target.name}.partial-*"):
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def replaced_file(target: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces `target` when the block ends without an exception.

    Raises `InvalidData` if the folder of `target` cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=f".{target.name}.partial-", dir=target.parent)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(partial).chmod(0o644)
        Path(partial).replace(target)
        sync(target.parent)
    finally:
        Path(partial).unlink(missing_ok=True)


def write_file(target: Path, content: bytes) -> None:
    """Write `content` to `target`, replacing an existing file atomically.

    Raises `InvalidData` if its folder cannot be written.
    """
    with replaced_file(target) as file:
        file.write(content)


def sync(path: Path) -> None:
    """Force a file's content, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_existing(target: Path) -> None:
    """Raise `InvalidData` if `target` exists; long work should call it before it starts."""
    try:
        exists = target.exists() or target.is_symlink()
    except OSError as error:  # a folder above it may not be entered
        raise _unwritable(target, error) from error
    if exists:
        raise InvalidData(target, "exists already; name a new folder or remove this one first")


def refuse_unwritable(target: Path) -> None:
    """Raise `InvalidData` if `target` can neither be made nor written into, before long work.

    The folder that decides is the nearest one that exists: `target` itself or one above it.
    """
    target = target.absolute()
    try:
        nearest = next(path for path in (target, *target.parents) if path.exists())
    except OSError as error:
        raise _unwritable(target, error) from error
    if not nearest.is_dir():
        raise InvalidData(target, f"cannot be written: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InvalidData(target, f"cannot be written: {nearest} may not be written to")


def _unwritable(target: Path, error: OSError) -> InvalidData:
    return InvalidData(target, f"cannot be written: {error.strerror}")
