"""Replays a data set as traffic: queries, with novel labels posted between them.

No public data set has times, so they are drawn: the test rows come in random order, and each novel
label is posted before a random row. All rows are posted as queries. Recall counts the pairs of a
row and one of its novel labels that was posted before the row. With `learn`, each row's labels are
posted as a click after the answer to its query, as a search log would record them.

Shapes: q test rows, U novel labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.config import STRICT
from service.core.errors import InvalidData
from service.core.types import Rows
from training.evaluation.metrics import DEEPEST_RANK
from training.lab.novel_split import NovelSplit

CUTS = (1, 5, 30, DEEPEST_RANK)
MOST_LABELS, MOST_INSTANCE_LABELS = 1_000, 100  # the service's default limits
AGES = (0, 1, 10, 30, 100, 300, 1_000, 3_000, 10_000)  # queries since a label was posted
CLICKS = (0, 1, 2, 3, 5, 10)


class Service(Protocol):
    """The part of the HTTP client that a replay needs."""

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The decoded response; raises if the status is not 200."""
        ...


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The test rows in order of time, [q], and the number of rows before each label's post, [U]."""

    rows: Rows
    posted: Rows


@dataclass(frozen=True, kw_only=True)
class ExpectedLabel:
    """A novel label of a query that was posted before it, so the answer should contain it.

    `age` is the number of queries since its post, `clicks` the number of its clicks so far. `rank`
    is its rank in the response, counted from 0, or None if the response does not contain it.
    """

    age: int
    clicks: int
    rank: int | None


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Bucket:
    """The expected labels whose age (or number of clicks) is in a range that starts at `first`.

    `asked` is their number, `recall` has R@k in percent.
    """

    first: int
    asked: int
    recall: dict[str, float]


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class ReplayResult:
    """A replay as `simulate stream --json` writes it and the report reads it."""

    dataset: str
    served: str
    seed: int
    one_shot: bool
    learn: bool
    asked: int
    by_age: tuple[Bucket, ...]
    by_clicks: tuple[Bucket, ...]


def read(path: Path) -> ReplayResult:
    """Read a file of `simulate stream --json`; raises `InvalidData`, which names the file."""
    try:
        return TypeAdapter(ReplayResult).validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidData(path, f"cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise InvalidData(path, "is not what `simulate stream --json` writes") from error


def schedule(split: NovelSplit, *, seed: int) -> Schedule:
    """Draw the order of queries and the time of each label's post."""
    rng = np.random.default_rng([seed, 12])
    rows = rng.permutation(len(split.everything.test))
    posted = rng.integers(0, len(rows), split.facts.novel)
    return Schedule(rows=rows, posted=posted)


def replay(
    split: NovelSplit,
    plan: Schedule,
    service: Service,
    *,
    one_shot: bool,
    learn: bool,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[ExpectedLabel]:
    """Post labels and queries in order of time; `progress` gets the number of queries so far."""
    traffic = _Traffic(split, plan, service, one_shot=one_shot)
    for time, row in enumerate(plan.rows.tolist()):
        traffic.post_labels(time)
        yield from traffic.query(time, row)
        if learn:
            traffic.click(row)
        progress(time + 1)


class _Traffic:
    """Sends a schedule's requests, and remembers which labels and clicks the service received."""

    def __init__(
        self, split: NovelSplit, plan: Schedule, service: Service, *, one_shot: bool
    ) -> None:
        self._split, self._service, self._one_shot = split, service, one_shot
        self._by_time = np.argsort(plan.posted, kind="stable")  # [U], novel labels by time of post
        self._times = plan.posted[self._by_time]
        self._time_of = dict(zip(split.novel.tolist(), plan.posted.tolist(), strict=True))
        self._ids = split.everything.labels.uids
        self._known = np.zeros(len(self._ids), bool)  # seen labels, and novel ones after their post
        self._known[: split.facts.seen] = True
        self._clicks = np.zeros(len(self._ids), np.int64)
        self._posted, self._version = 0, 0

    def post_labels(self, time: int) -> None:
        """Post the novel labels whose time has come."""
        stop = int(np.searchsorted(self._times, time, side="right"))
        columns = self._split.novel[self._by_time[self._posted : stop]]
        for page in _pages(_labels(self._split, columns, self._one_shot), MOST_LABELS):
            self._version = self._service.post("/labels", {"labels": page})["version"]
        self._known[columns], self._posted = True, max(stop, self._posted)

    def query(self, time: int, row: int) -> Iterator[ExpectedLabel]:
        """Post a test row's query; yield those of its novel labels that were posted before."""
        body = {
            "queries": [self._split.everything.test.instances.texts[row]],
            "top_k": DEEPEST_RANK,
            "min_version": self._version,
        }
        [result] = self._service.post("/predict", body)["results"]
        ranks = {keyword["id"]: rank for rank, keyword in enumerate(result["keywords"])}
        for column in self._known_labels(row):
            if column in self._time_of:
                yield ExpectedLabel(
                    age=time - self._time_of[column],
                    clicks=int(self._clicks[column]),
                    rank=ranks.get(self._ids[column]),
                )

    def click(self, row: int) -> None:
        """Post a test row's known labels as a click."""
        columns = self._known_labels(row)
        if not columns:
            return
        query = self._split.everything.test.instances.texts[row]
        pages = _pages([self._ids[column] for column in columns], MOST_INSTANCE_LABELS)
        clicked = [{"query": query, "labels": page} for page in pages]
        self._version = self._service.post("/instances", {"instances": clicked})["version"]
        self._clicks[columns] += 1

    def _known_labels(self, row: int) -> list[int]:
        return [column for column in _columns(self._split, row) if self._known[column]]


def buckets(
    labels: Sequence[ExpectedLabel], starts: Sequence[int], value: Callable[[ExpectedLabel], int]
) -> list[Bucket]:
    """Recall by age or by clicks; empty buckets are left out."""
    bucket_of = np.searchsorted(starts, [value(label) for label in labels], side="right") - 1
    ranks = np.array(
        [DEEPEST_RANK if label.rank is None else label.rank for label in labels], np.int64
    )
    return [
        Bucket(
            first=first,
            asked=int((bucket_of == bucket).sum()),
            recall={f"R@{k}": 100 * float((ranks[bucket_of == bucket] < k).mean()) for k in CUTS},
        )
        for bucket, first in enumerate(starts)
        if (bucket_of == bucket).any()
    ]


def _pages(sequence: list[Any], size: int) -> Iterator[list[Any]]:
    return (sequence[start : start + size] for start in range(0, len(sequence), size))


def _labels(split: NovelSplit, columns: Rows, one_shot: bool) -> list[dict[str, Any]]:
    labels, revealed = split.everything.labels, split.revealed()
    documents = [
        {"id": labels.uids[column], "text": labels.texts[column]} for column in columns.tolist()
    ]
    if one_shot:
        for document, column in zip(documents, columns.tolist(), strict=True):
            document["queries"] = [revealed[column - split.facts.seen]]
    return documents


def _columns(split: NovelSplit, row: int) -> list[int]:
    """A test row's labels, except for filtered ones."""
    test = split.everything.test
    labels = test.labels_of[row].indices
    return sorted(set(labels.tolist()) - set(test.filtered[row].indices.tolist()))
