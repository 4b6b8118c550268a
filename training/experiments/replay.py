"""A data set replayed as traffic: queries are asked while novel labels are posted between them.

No public set has times, so they are drawn: the test rows come in a random order, and a novel label
is posted before a random one of them. All rows are asked; what is counted are pairs of a row and a
novel label of its own that was posted by then. With `learn`, each row's labels are posted as a
click once it was answered, as a search log would.

Shapes: q test rows, U novel labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.config import STRICT
from service.core.types import Rows
from training.datasets.novel_split import NovelSplit
from training.evaluation.metrics import DEEPEST_RANK

CUTS = (1, 5, 30, DEEPEST_RANK)
MOST_LABELS, MOST_INSTANCE_LABELS = 1_000, 100  # the service's default limits
AGES = (0, 1, 10, 30, 100, 300, 1_000, 3_000, 10_000)  # queries since a label was posted
CLICKS = (0, 1, 2, 3, 5, 10)


class Service(Protocol):
    """What is asked of the service; both paths as in its HTTP contract."""

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer; raises for any status but 200."""
        ...


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Test rows in order of their time, [q], and how many come before each label, [U]."""

    rows: Rows
    posted: Rows


@dataclass(frozen=True, kw_only=True)
class Found:
    """A posted label that a query should have found.

    `age` counts the queries since it was posted, `clicks` those learned for it, `rank` is its
    place in the answer from 0, None where it is not in it.
    """

    age: int
    clicks: int
    rank: int | None


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Bucket:
    """Labels of an age, or with so many clicks, from `first` on: how often, and R@k in percent."""

    first: int
    asked: int
    recall: dict[str, float]


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Stream:
    """A replay as `simulate stream --json` writes it and the report reads it."""

    dataset: str
    served: str
    seed: int
    one_shot: bool
    learn: bool
    asked: int
    by_age: tuple[Bucket, ...]
    by_clicks: tuple[Bucket, ...]


def schedule(split: NovelSplit, *, seed: int) -> Schedule:
    """Draw when everything happens."""
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
) -> Iterator[Found]:
    """Post and ask in the order of time; `progress` gets the queries asked."""
    test, uids = split.everything.test, split.everything.labels.uids
    due = np.argsort(plan.posted, kind="stable")  # [U], novel labels in order of their time
    known = np.zeros(len(uids), bool)
    known[: split.facts.seen] = True
    clicks, version, next_due = np.zeros(len(uids), np.int64), 0, 0
    time_of = dict(zip(split.novel.tolist(), plan.posted.tolist(), strict=True))
    for time, row in enumerate(plan.rows.tolist()):
        stop = int(np.searchsorted(plan.posted[due], time, side="right"))
        if stop > next_due:
            columns = split.novel[due[next_due:stop]]
            for some in _pieces(_labels(split, columns, one_shot), MOST_LABELS):
                version = service.post("/labels", {"labels": some})["version"]
            known[columns], next_due = True, stop
        query = test.instances.texts[row]
        body = {"queries": [query], "top_k": DEEPEST_RANK, "min_version": version}
        [result] = service.post("/predict", body)["results"]
        ranks = {keyword["id"]: rank for rank, keyword in enumerate(result["keywords"])}
        own = [column for column in _columns(split, row) if known[column]]
        for column in own:
            if column in time_of:
                yield Found(
                    age=time - time_of[column],
                    clicks=int(clicks[column]),
                    rank=ranks.get(uids[column]),
                )
        if learn and own:
            pieces = _pieces([uids[column] for column in own], MOST_INSTANCE_LABELS)
            clicked = [{"query": query, "labels": some} for some in pieces]
            version = service.post("/instances", {"instances": clicked})["version"]
            clicks[own] += 1
        progress(time + 1)


def buckets(
    found: Sequence[Found], starts: Sequence[int], value: Callable[[Found], int]
) -> list[Bucket]:
    """Recall by age or by clicks; buckets that nobody asked for are left out."""
    places = np.searchsorted(starts, [value(one) for one in found], side="right") - 1
    ranks = np.array([DEEPEST_RANK if one.rank is None else one.rank for one in found], np.int64)
    return [
        Bucket(
            first=first,
            asked=int((places == place).sum()),
            recall={f"R@{k}": 100 * float((ranks[places == place] < k).mean()) for k in CUTS},
        )
        for place, first in enumerate(starts)
        if (places == place).any()
    ]


def _pieces(sequence: list[Any], size: int) -> Iterator[list[Any]]:
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
    """A test row's labels, as far as they count."""
    test = split.everything.test
    labels = test.labels_of[row].indices
    return sorted(set(labels.tolist()) - set(test.filtered[row].indices.tolist()))
