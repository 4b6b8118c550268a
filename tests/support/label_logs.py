"""Help to test label logs: events to append, a reader of new events, and access to the database.

`python -m tests.support.label_logs STATE NAME COUNT` appends from another process. It opens the
log, prints "ready", waits for a line of input, and appends NAME-0, NAME-1, ..., one per
transaction. Without NAME and COUNT it watches the log, prints "ready", and waits for a line.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from service.core.changes import PutLabel
from service.core.label_log import LabelLog, open_log
from service.core.label_log.rows import EventReader
from service.core.types import Event, Halves
from tests.support.waiting import READY_WITHIN, wait_for

PAGE = 4096


@dataclass(frozen=True)
class StoredChange:
    """A change of any kind and content."""

    kind: str
    content: Mapping[str, Any]
    vectors: Halves

    def body(self) -> Mapping[str, Any]:
        return self.content


def event(name: str, *, rows: int = 1, kind: str = PutLabel.kind) -> StoredChange:
    """Make a change with this name; its vectors depend on the length of the name."""
    vectors = np.random.default_rng(len(name)).standard_normal((rows, 4)).astype(np.float16)
    body = {"id": name, "text": f"text of {name} ✓", "queries": [], "metadata": {}}
    return StoredChange(kind, body, vectors)


def append(
    log: LabelLog, *names: str, encoder: str = "e", kind: str = PutLabel.kind
) -> list[Event]:
    """Append one event per name in one transaction."""
    with log.exclusive() as appending:
        return appending.append([event(name, kind=kind) for name in names], encoder=encoder)


def ids(reader: EventReader, **bounds: int) -> list[str]:
    """Read events; return the ids in their bodies."""
    return [read.body["id"] for read in reader.read(**bounds)]


def damage_page(file: Path, *, holding: bytes) -> None:
    """Overwrite the page of a SQLite log that holds these bytes.

    Another process writes: if this one opened and closed the file, it would lose its locks.
    """
    seek = f"seek={file.read_bytes().index(holding) // PAGE}"
    command = ["dd", f"of={file}", seek, f"bs={PAGE}", "conv=notrunc", "status=none"]
    subprocess.run(command, input=b"\xff" * PAGE, check=True)


@dataclass(frozen=True)
class Place:
    """The place of a log: a folder or a URL."""

    state: Path | str

    def open(self, *, create: bool = True) -> LabelLog:
        return open_log(self.state, create=create)

    def ids(self, *, after: int = 0) -> list[str]:
        with closing(self.open()) as log:
            return ids(log, after=after)

    def tamper(self, statement: str, **values: Any) -> Sequence[Any]:
        """Execute a statement directly in the database, and return its rows."""
        with self.connected() as connection:
            result = connection.execute(sa.text(statement), values)
            return result.all() if result.returns_rows else []

    def alter(self, number: int, /, **columns: Any) -> None:
        """Change columns of an event directly in the database."""
        changes = ", ".join(f"{name} = :{name}" for name in columns)
        self.tamper(f"UPDATE events SET {changes} WHERE sequence = {number}", **columns)

    @contextmanager
    def connected(self) -> Iterator[sa.Connection]:
        """Open a transaction directly in the database."""
        if isinstance(self.state, Path):
            url = sa.URL.create("sqlite", database=str(self.state / "labels.sqlite"))
        else:
            url = sa.make_url(self.state).set(drivername="postgresql+psycopg")
        with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
            yield connection


class Follower:
    """Reads new events whenever the log calls it, like a replica."""

    def __init__(self, log: LabelLog) -> None:
        self.log, self.last = log, 0
        self.signals: list[int | None] = []
        log.watch(self)

    def __call__(self, newest: int | None) -> None:
        for read in self.log.read(after=self.last):
            self.last = read.sequence
        self.signals.append(newest)

    def reaches(self, sequence: int) -> bool:
        """Wait until the event was read; return False if the follower has already read further."""
        wait_for(lambda: self.last >= sequence)
        return self.last == sequence


def main(state: str, name: str = "", count: str = "0") -> None:
    with closing(open_log(state)) as log:
        if not name:
            watched = threading.Event()
            log.watch(lambda newest: watched.set())
            assert watched.wait(READY_WITHIN)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        for number in range(int(count)):
            append(log, f"{name}-{number}")


if __name__ == "__main__":
    main(*sys.argv[1:])
