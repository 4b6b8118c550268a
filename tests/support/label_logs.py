"""Label logs for tests: events to append, and a way behind the log's back.

`python -m tests.support.label_logs STATE NAME COUNT` appends NAME-0, NAME-1, ..., one a
transaction, as another process would.
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from service.core.label_log import PUT_LABEL, LabelLog, NewEvent, open_log
from service.core.types import Event


def event(name: str, *, rows: int = 1, kind: str = PUT_LABEL) -> NewEvent:
    """An event that says `name` and has vectors of its own."""
    vectors = np.random.default_rng(len(name)).standard_normal((rows, 4)).astype(np.float16)
    body = {"id": name, "text": f"text of {name} ✓", "queries": [], "metadata": {}}
    return NewEvent(kind=kind, body=body, vectors=vectors)


def append(log: LabelLog, *names: str, encoder: str = "e") -> list[Event]:
    """Append an event a name in one transaction."""
    with log.exclusive() as appending:
        return appending.append([event(name) for name in names], encoder=encoder)


@dataclass(frozen=True)
class Place:
    """Where a log is: a folder or a URL."""

    state: Path | str

    def open(self, *, create: bool = True) -> LabelLog:
        return open_log(self.state, create=create)

    def ids(self, *, after: int = 0) -> list[str]:
        with closing(self.open()) as log:
            return [found.body["id"] for found in log.read(after=after)]

    def tamper(self, statement: str, **values: Any) -> Sequence[Any]:
        """Change the database behind the log's back, or ask it."""
        engine = sa.create_engine(self._url())
        try:
            with engine.begin() as connection:
                result = connection.execute(sa.text(statement), values)
                return result.all() if result.returns_rows else []
        finally:
            engine.dispose()

    def _url(self) -> sa.URL:
        if isinstance(self.state, Path):
            return sa.URL.create("sqlite", database=str(self.state / "labels.sqlite"))
        return sa.make_url(self.state).set(drivername="postgresql+psycopg")


def main(state: str, name: str, count: str) -> None:
    with closing(open_log(state)) as log:
        for number in range(int(count)):
            append(log, f"{name}-{number}")


if __name__ == "__main__":
    main(*sys.argv[1:])
