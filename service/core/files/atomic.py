"""Files and folders that appear complete or not at all.

Content is written under a temporary name next to its target, synced to disk, and renamed. A crash
leaves at worst a `.NAME.partial-*` entry, which no reader opens.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from service.core.errors import InvalidData, KeymatchError, Unwritable

# The errors of a disk that takes no more bytes; libraries quote their texts in other errors.
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES)
_PROBE_BYTES = 65_536


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` when the block ends without an exception.

    Raises `InvalidData` if `target` exists, and `Unwritable` if the disk takes no more bytes.
    """
    target = target.absolute()
    refuse_existing(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    except OSError as error:
        raise _unwritable(target, error) from error
    partial.chmod(0o755)  # with mkdtemp's 0o700, other users could not read it
    try:
        with writing(target, partial):
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
    """Remove temporary folders that a killed process left next to `target`."""
    for partial in target.parent.glob(f".{target.name}.partial-*"):
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def replaced_file(target: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces `target` when the block ends; raises `Unwritable`."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=f".{target.name}.partial-", dir=target.parent)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        with writing(target, Path(partial)):
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
    """Write `content` to `target`, replacing an existing file; raises `Unwritable`."""
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
    """Raise `InvalidData` if `target` exists. Call this before long work."""
    try:
        exists = target.exists() or target.is_symlink()
    except OSError as error:  # a folder above it may be inaccessible
        raise _unwritable(target, error) from error
    if exists:
        raise InvalidData(target, "exists already; name a new folder or remove this one first")


def refuse_unwritable(target: Path) -> None:
    """Raise `Unwritable` unless `target`, or the nearest existing folder above it, is writable."""
    target = target.absolute()
    try:
        nearest = next(path for path in (target, *target.parents) if path.exists())
    except OSError as error:
        raise _unwritable(target, error) from error
    if not nearest.is_dir():
        raise Unwritable(target, f"{nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise Unwritable(target, f"{nearest} may not be written to")


def refuse_unusable(target: Path) -> None:
    """Raise as `refuse_existing` and `refuse_unwritable` do. Call this before long work."""
    refuse_existing(target)
    refuse_unwritable(target)


@contextmanager
def writing(target: Path, partial: Path | None = None) -> Iterator[None]:
    """Raise `Unwritable`, with the cause, if the disk refuses what the block writes to `target`.

    `partial` is the name that the block writes under, by default `target`. A failed write's error
    has no path, and libraries raise other errors than `OSError`. Errors that name another file pass
    unchanged, and so do all errors while the disk still takes bytes.
    """
    partial = partial or target
    try:
        yield
    except Unwritable as error:
        if not error.path.is_relative_to(partial):
            raise
        raise Unwritable(target, error.cause) from error
    except Exception as error:
        ours = isinstance(error, KeymatchError)  # such as an error of SQLite, if it names the file
        cause = None if ours and str(partial) not in str(error) else refusal_behind(error, partial)
        if cause is None:
            raise
        # Libraries may write large files into the temporary folder before they write the target.
        temporary = Path(tempfile.gettempdir())
        only_there = disk_refusal(temporary) and not disk_refusal(_folder_of(partial))
        raise _unwritable(temporary if only_there else target, cause) from error


def disk_refusal(folder: Path) -> OSError | None:
    """Write some bytes into `folder`, and return the disk's error, or None if it takes them."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error
    return None


def refusal_behind(error: Exception, partial: Path) -> OSError | None:
    """Return the disk's own error behind `error`; None if it is not about writing `partial`."""
    number = None
    if isinstance(error, OSError):
        number = error.errno
        named = [Path(os.fsdecode(name)) for name in (error.filename, error.filename2) if name]
        if named:  # the error of a failed copy names the source first
            return error if any(path.is_relative_to(partial) for path in named) else None
    if number is None:
        number = next((one for one in REFUSALS if os.strerror(one) in str(error)), None)
    if number is not None:
        return OSError(number, os.strerror(number)) if number in REFUSALS else None
    return disk_refusal(_folder_of(partial)) or disk_refusal(Path(tempfile.gettempdir()))


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _unwritable(target: Path, error: OSError) -> Unwritable:
    return Unwritable(target, error.strerror or str(error))
