"""Example queries from the test rows with expected and actual answers, for a person to judge.

| file            | content                                                                 |
|-----------------|-------------------------------------------------------------------------|
| `examples.json` | fifty queries with their answers, and how many of all were won and lost |

The queries are drawn by a seed, before their answers are known.

Shapes: m test rows that were answered, L labels, k = `TOP` answers per row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import orjson
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Natural
from service.core.errors import InvalidData
from service.core.files.atomic import write_file
from service.core.types import Bools
from training.datasets.dataset import Dataset
from training.evaluation.answers import Answers, positives_of, verdicts
from training.evaluation.results import read_document

FILE = "examples.json"
FORMAT, VERSION = "keymatch-examples", 1
SHOWN_QUERIES, SHOWN_EXPECTED = 50, 10

Verdict = Literal["won", "lost", "same"]
_NAMES: dict[int, Verdict] = {1: "won", -1: "lost", 0: "same"}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ShownAnswer:
    """One label of an answer; `right` if it is an expected label."""

    text: str
    score: float
    right: bool


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ExampleQuery:
    """A query, its expected labels, and the answers of both memories.

    `more` is the number of expected labels that are left out. `untrained` and `verdict` are None if
    the untrained memory was not measured.
    """

    query: str
    expected: tuple[str, ...]
    more: Natural
    answers: tuple[ShownAnswer, ...]
    untrained: tuple[ShownAnswer, ...] | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AgainstUntrained:
    """Comparison over all rows that both memories answered: how many were won, lost, and tied."""

    encoder: str  # the untrained encoder's name
    memorization: float
    depth: int
    tau: float
    won: Natural
    lost: Natural
    same: Natural

    @property
    def rows(self) -> int:
        """How many rows both memories answered."""
        return self.won + self.lost + self.same


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Examples:
    """Example queries drawn by `seed`; `against` is None without the untrained memory's answers."""

    seed: int
    queries: Annotated[tuple[ExampleQuery, ...], Field(max_length=SHOWN_QUERIES)]
    against: AgainstUntrained | None = None

    @model_validator(mode="after")
    def _check_sides(self) -> Self:
        is_judged = self.against is not None
        for query in self.queries:
            if (query.untrained is not None, query.verdict is not None) != (is_judged, is_judged):
                raise ValueError(
                    "either all queries are judged against the untrained memory or none"
                )
        return self


_ADAPTER = TypeAdapter(Examples)


def examples_of(
    answers: Answers, untrained: Answers | None, dataset: Dataset, *, seed: int
) -> Examples:
    """Examples from the first rows of `answers`, which are in random order, as in `untrained`."""
    ours = _Side(answers=answers, right=answers.right(dataset.test))
    if untrained is None:
        return Examples(seed=seed, queries=tuple(_shown(ours, None, dataset)))
    theirs = _Side(answers=untrained, right=untrained.right(dataset.test))
    judged, choices = verdicts(ours.right, theirs.right), untrained.choices
    return Examples(
        seed=seed,
        queries=tuple(_shown(ours, theirs, dataset)),
        against=AgainstUntrained(
            encoder=untrained.encoder,
            memorization=choices.memorization,
            depth=choices.depth,
            tau=choices.tau,
            won=int((judged > 0).sum()),
            lost=int((judged < 0).sum()),
            same=int((judged == 0).sum()),
        ),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Side:
    """The answers of one memory, and which of them are correct, [m, k]."""

    answers: Answers
    right: Bools

    def shown(self, place: int, texts: Sequence[str]) -> tuple[ShownAnswer, ...]:
        """The answer to the row at position `place`, with the labels' texts."""
        columns = zip(
            self.answers.labels[place].tolist(),
            self.answers.scores[place].tolist(),
            self.right[place].tolist(),
            strict=True,
        )
        return tuple(
            ShownAnswer(text=texts[label], score=score, right=is_right)
            for label, score, is_right in columns
            if label >= 0
        )


def _shown(ours: _Side, theirs: _Side | None, dataset: Dataset) -> Iterator[ExampleQuery]:
    rows, texts = ours.answers.rows[:SHOWN_QUERIES], dataset.labels.texts
    positives = positives_of(dataset.test)
    judged = None if theirs is None else verdicts(ours.right, theirs.right)
    for place, row in enumerate(rows.tolist()):
        expected = [texts[label] for label in positives[row].indices.tolist()]
        yield ExampleQuery(
            query=dataset.test.instances.texts[row],
            expected=tuple(expected[:SHOWN_EXPECTED]),
            more=max(0, len(expected) - SHOWN_EXPECTED),
            answers=ours.shown(place, texts),
            untrained=None if theirs is None else theirs.shown(place, texts),
            verdict=None if judged is None else _NAMES[int(judged[place])],
        )


def write_examples(examples: Examples, folder: Path) -> None:
    """Write `examples.json` into a folder, which may hold other files."""
    document = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(examples)}
    write_file(folder / FILE, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def read_examples(folder: Path) -> Examples | None:
    """Read a folder's examples, None if it has none; raises `InvalidData` naming the file."""
    path = folder / FILE
    if not path.is_file():
        return None
    document = read_document(path, format_name=FORMAT, version=VERSION)
    try:
        return _ADAPTER.validate_json(orjson.dumps(document))
    except ValidationError as error:
        raise InvalidData(path, f"is not what `score` writes: {error}") from error
