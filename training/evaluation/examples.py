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

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Natural
from training.datasets.dataset import Dataset
from training.documents import checked, read_document, write_json
from training.evaluation.answers import Answers, positives_of, verdicts

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


def examples_of(
    answers: Answers, untrained: Answers | None, dataset: Dataset, *, seed: int
) -> Examples:
    """Examples from the first rows of `answers`, which are in random order, as in `untrained`."""
    positives, rows = positives_of(dataset.test), answers.rows[:SHOWN_QUERIES].tolist()
    examples = [
        _example(row, positives[row].indices.tolist(), shown, dataset)
        for row, shown in zip(rows, _shown(answers, dataset), strict=True)
    ]
    if untrained is None:
        return Examples(seed=seed, queries=tuple(examples))
    judged = verdicts(answers.right(dataset.test), untrained.right(dataset.test))
    choices, theirs = untrained.choices, _shown(untrained, dataset)
    compared = zip(examples, theirs, judged[:SHOWN_QUERIES].tolist(), strict=True)
    return Examples(
        seed=seed,
        queries=tuple(
            dataclasses.replace(example, untrained=other, verdict=_NAMES[verdict])
            for example, other, verdict in compared
        ),
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


def _shown(answers: Answers, dataset: Dataset) -> Iterator[tuple[ShownAnswer, ...]]:
    """Yield the answers to the first rows, with the labels' texts."""
    texts, right = dataset.labels.texts, answers.right(dataset.test)
    columns = (table[:SHOWN_QUERIES].tolist() for table in (answers.labels, answers.scores, right))
    for row in zip(*columns, strict=True):
        yield tuple(
            ShownAnswer(text=texts[label], score=score, right=is_right)
            for label, score, is_right in zip(*row, strict=True)
            if label >= 0
        )


def _example(
    row: int, expected: Sequence[int], answers: tuple[ShownAnswer, ...], dataset: Dataset
) -> ExampleQuery:
    """The test row `row` with its `expected` labels and its answers."""
    return ExampleQuery(
        query=dataset.test.instances.texts[row],
        expected=tuple(dataset.labels.texts[label] for label in expected[:SHOWN_EXPECTED]),
        more=max(0, len(expected) - SHOWN_EXPECTED),
        answers=answers,
    )


def write_examples(examples: Examples, folder: Path) -> None:
    """Write `examples.json` into a folder, which may hold other files."""
    document = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(examples)}
    write_json(folder / FILE, document)


def read_examples(folder: Path) -> Examples | None:
    """Read a folder's examples, None if it has none; raises `InvalidData` naming the file."""
    path = folder / FILE
    if not path.is_file():
        return None
    document = read_document(path, format_name=FORMAT, version=VERSION)
    return checked(Examples, document, path=path, writer="score")
