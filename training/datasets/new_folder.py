"""A folder that appears whole or not at all."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from service.core.errors import InvalidData


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `target` to fill; sync and rename it at the end.

    An error inside leaves nothing behind. Raises `InvalidData` where `target` exists already (it
    is never overwritten) or its parent cannot be written.
    """
    if target.exists() or target.is_symlink():
        raise InvalidData(target, "exists already; name a new folder or remove this one first")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise InvalidData(target, f"cannot be written: {error.strerror}") from error
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp's own is 0o700, which would keep other readers out
        for path in temporary.iterdir():
            _sync(path)
        _sync(temporary)
        temporary.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already after the rename


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write `lines`, each with a line feed, as gzip where `path` ends in .gz.

    The same lines give the same bytes: the gzip header carries neither time nor name.
    """
    with path.open("wb") as raw:
        if path.suffix != ".gz":
            raw.writelines(line + b"\n" for line in lines)
            return
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
            packed.writelines(line + b"\n" for line in lines)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
