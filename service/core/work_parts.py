"""Long work in named parts, one after the other in this process or as tasks of a Ray cluster.

A part has a name, such as `3-of-12`, and a folder `WORK/NAME`. The folder appears complete, by one
rename, with its result and `part.json`: the SHA-256 of the part's arguments, and the sizes of the
files. A part with this record is finished. An interrupted command that is called again makes only
the other parts; a part with other arguments is made again.

On a cluster, `WORK` must lie on a disk that all its machines share, and paths in arguments, too.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import orjson

from service.core.errors import InvalidConfig
from service.core.files.atomic import discard_partial, new_folder, write_file
from service.core.index.protocol import Progress, shifted
from service.core.processes.ray_cluster import Cluster

RECORD = "part.json"
# A network file system may show a new folder to other machines late.
SEEN_SECONDS = 60.0
_PAUSE_SECONDS = 0.2

# `make(folder, progress, **arguments)` writes the part's result into the folder.
Make = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class WorkPart:
    """A part of some work: its name, the arguments that decide its result, and its size.

    Arguments are JSON values. `size` is the number of items that it adds to the progress.
    """

    name: str
    arguments: Mapping[str, Any]
    size: int = 1

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the arguments."""
        content = orjson.dumps(self.arguments, option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(content).hexdigest()


def numbered(parts: Sequence[tuple[Mapping[str, Any], int]]) -> list[WorkPart]:
    """Return parts with these arguments and sizes; the names are `1-of-N`, `2-of-N`, ..."""
    return [
        WorkPart(name=f"{number}-of-{len(parts)}", arguments=arguments, size=size)
        for number, (arguments, size) in enumerate(parts, start=1)
    ]


def _ignore(_done: int) -> None:
    pass


def run_parts(
    make: Make,
    parts: Sequence[WorkPart],
    *,
    work: Path,
    cluster: Cluster | None = None,
    cores: int = 1,
    progress: Progress = _ignore,
) -> list[Path]:
    """Make all parts that are not finished; returns the folders of all parts, in their order.

    `make(folder, progress, **arguments)` writes a part's result into `folder`, and may call its
    `progress` with the number of finished items of the part. On a `cluster`, it must be a function
    of a module or a `partial` of one, each part occupies so many `cores`, and only whole parts
    count. What a `partial` binds is no part of the digest: it must not decide the result.

    `progress` is called with the number of finished items of all parts. Raises what `make` raises;
    on a cluster as `Cluster.results`, and `InvalidConfig` if its machines do not share `work`.
    """
    work = work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    left, done = [], 0
    for part in parts:
        if _is_finished(work / part.name, part.digest):
            done += part.size
            continue
        left.append(part)
        shutil.rmtree(work / part.name, ignore_errors=True)
        discard_partial(work / part.name)
    progress(done)
    if cluster is None:
        for part in left:
            _make(make, work / part.name, part.digest, part.arguments, shifted(progress, done))
            done += part.size
            progress(done)
    else:
        calls = ((make, work / part.name, part.digest, part.arguments) for part in left)
        of_name = {part.name: part for part in left}
        for name in cluster.results(_make_there, calls, cores=cores):
            part = of_name[name]
            wait_until_seen(partial(_is_finished, work / name, part.digest), work)
            done += part.size
            progress(done)
    return [work / part.name for part in parts]


def _make(
    make: Make, folder: Path, digest: str, arguments: Mapping[str, Any], progress: Progress
) -> None:
    with new_folder(folder) as target:
        make(target, progress, **arguments)
        record = {"digest": digest, "files": _sizes(target)}
        write_file(target / RECORD, orjson.dumps(record))


def _make_there(make: Make, folder: Path, digest: str, arguments: Mapping[str, Any]) -> str:
    """Make a part on a machine of the cluster; returns its name."""
    if not folder.parent.is_dir():
        raise unshared(folder.parent)
    # A worker that died may have finished the part, but not said so.
    if not _is_finished(folder, digest):
        _make(make, folder, digest, arguments, _ignore)
    return folder.name


def _is_finished(folder: Path, digest: str) -> bool:
    try:
        record = orjson.loads((folder / RECORD).read_bytes())
        return bool(record["digest"] == digest and record["files"] == _sizes(folder))
    except (OSError, ValueError, TypeError, KeyError):  # no readable record
        return False


def _sizes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / RECORD
    }


def wait_until_seen(there: Callable[[], bool], folder: Path) -> None:
    """Wait until this machine sees what another one has written into `folder`.

    Raises `InvalidConfig` after `SEEN_SECONDS`.
    """
    late = monotonic() + SEEN_SECONDS
    while not there():
        if monotonic() > late:
            raise unshared(folder)
        sleep(_PAUSE_SECONDS)
        list(folder.iterdir())  # makes a network file system look again


def unshared(folder: Path) -> InvalidConfig:
    """Return the error that not all machines of a cluster see a folder."""
    return InvalidConfig(
        f"not all machines of the cluster see the folder {folder}: it must lie on a disk that they"
        " share, under the same path"
    )
