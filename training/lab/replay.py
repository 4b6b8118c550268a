"""Replays a data set as traffic: queries, with novel labels posted between them.

No public data set has times, so they are drawn: the test rows come in random order, and each novel
label is posted before a random row. All rows are posted as queries. Recall counts the pairs of a
row and one of its novel labels that was posted before the row. With `learn`, each row's labels are
posted as a click after the answer to its query, as a search log would record them.

Shapes: q test rows, U novel labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.config import STRICT
from service.core.types import Rows
from training.documents import checked, read_json
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
    return checked(ReplayResult, read_json(path), path=path, writer="simulate stream --json")


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
    ids, texts = split.everything.labels.uids, split.everything.test.instances.texts
    posts = _posts(split, one_shot=one_shot)
    time_of = dict(zip(split.novel.tolist(), plan.posted.tolist(), strict=True))
    due: dict[int, list[int]] = {}
    for column, time in time_of.items():
        due.setdefault(time, []).append(column)
    known, clicks, version = set(range(split.facts.seen)), Counter[int](), 0
    for time, row in enumerate(plan.rows.tolist()):
        for page in _pages([posts[column] for column in due.get(time, ())], MOST_LABELS):
            version = service.post("/labels", {"labels": page})["version"]
        known.update(due.get(time, ()))
        body = {"queries": [texts[row]], "top_k": DEEPEST_RANK, "min_version": version}
        [result] = service.post("/predict", body)["results"]
        ranks = {keyword["id"]: rank for rank, keyword in enumerate(result["keywords"])}
        columns = [column for column in _columns(split, row) if column in known]
        for column in columns:
            if column in time_of:
                yield ExpectedLabel(
                    age=time - time_of[column], clicks=clicks[column], rank=ranks.get(ids[column])
                )
        if learn and columns:
            pages = _pages([ids[column] for column in columns], MOST_INSTANCE_LABELS)
            clicked = [{"query": texts[row], "labels": page} for page in pages]
            version = service.post("/instances", {"instances": clicked})["version"]
            clicks.update(columns)
        progress(time + 1)


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


def _posts(split: NovelSplit, *, one_shot: bool) -> dict[int, dict[str, Any]]:
    """The body that posts each novel label, by its column."""
    labels = split.everything.labels
    posts: dict[int, dict[str, Any]] = {
        column: {"id": labels.uids[column], "text": labels.texts[column]}
        for column in split.novel.tolist()
    }
    if one_shot:
        for post, query in zip(posts.values(), split.revealed(), strict=True):
            post["queries"] = [query]
    return posts


def _columns(split: NovelSplit, row: int) -> list[int]:
    """A test row's labels, except for filtered ones."""
    test = split.everything.test
    labels = test.labels_of[row].indices
    return sorted(set(labels.tolist()) - set(test.filtered[row].indices.tolist()))
