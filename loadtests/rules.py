"""`python -m loadtests.rules`: CPU time of queries next to many rules, dates, boosts and clicks.

Rules hide, pin and boost. Each has the text of a query as its condition; only one measure asks
these queries. Dates and boosts are those of the bundle's first labels. Clicks are for queries of
the bundle; with times, they decay. Runs in one thread of this process, without a server. Writes
rules.json and rules.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice

import numpy as np

from loadtests.bare_predictor import BarePredictor, cpu_times
from loadtests.harness import Scenario, option
from loadtests.report import Row
from service.core import times as moments
from service.core.bundle.label_details import Details
from service.core.changes import PutInstance
from service.core.label_filter import parse
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.label_fields import LabelFields
from service.core.memory.rule_table import RuleTable
from service.core.memory.view import View
from service.core.rules import SPECIFICITY, Boost, Pin, Rule
from service.core.types import NewInstance

MOST_SHARE = 0.05  # of the CPU time of a query, that all of it may add
_ROUNDS = 7  # alternating between the views
_DAY = 86_400 * moments.SECOND
_HALF_LIFE = 30.0  # of clicks, in days


@dataclass(frozen=True, kw_only=True)
class Rules(Scenario):
    """The same queries from views with and without rules, dates, boosts and clicks."""

    title = "Rules"
    judged = True

    queries: int = option("Number of queries.", 300)
    rules: int = option("Number of rules, each with its own condition.", 10_000)
    labels: int = option("Number of labels with dates and a boost.", 100_000)
    clicks: int = option("Number of clicks, each of its own query.", 10_000)

    def rows(self) -> Iterator[Row]:
        """Measure all views in turn, then yield a row for each."""
        bare = BarePredictor.open(self.bundle)
        texts = list(islice(self.texts(), self.queries + self.rules))
        asked, others = texts[: self.queries], texts[self.queries :]
        plain = bare.view
        dated = _with_dates(plain, self.labels)
        table = RuleTable.from_rules(_rules(plain, list(islice(cycle(others), self.rules))))
        views = {
            "without": plain,
            "rules": replace(plain, rules=table),
            "dates and boosts": dated,
            "both": replace(dated, rules=table),
            "a rule acts": replace(plain, rules=RuleTable.from_rules(_rules(plain, asked))),
            "clicks": _clicked(plain, self.clicks, at=None),
            "clicks with times": _clicked(plain, self.clicks, at=moments.now() - 10 * _DAY),
        }
        active = {
            name: partial(_active, KnowledgeMemory(plain.bundle, half_life=_HALF_LIFE), view)
            for name, view in views.items()
        }
        times = cpu_times(bare, active, asked, rounds=_ROUNDS)
        means = {name: 1000 * of_view.mean(axis=1) for name, of_view in times.items()}  # [rounds]
        for name, of_view in means.items():
            other = means["clicks" if name == "clicks with times" else "without"]
            share = float(np.median(of_view / other)) - 1
            bounded = name not in ("without", "a rule acts", "clicks")
            yield Row.bounded(
                name,
                share,
                most=MOST_SHARE if bounded else None,
                unit=" more",
                measured=f"{np.median(of_view):.3f} ms per query, {share:+.1%}",
                figures={"ms": float(np.median(of_view)), "share": share},
            )


def _active(memory: KnowledgeMemory, view: View) -> View:
    """Return what a query sees of a view now: dates and decay change with the time."""
    return memory.active(view, moments.now())


def _rules(view: View, conditions: Sequence[str]) -> Iterator[Rule]:
    """Yield a rule per condition, with each way to match and each consequence but filters."""
    matches = [match for match in SPECIFICITY if match is not None]
    cheap = parse({"none": [{"field": "price", "gt": 9}]}, at="filter", most=9)
    ids = view.labels.base_ids
    for number, query in enumerate(conditions):
        first, second = ids[2 * number % len(ids)], ids[(2 * number + 1) % len(ids)]
        consequences: Mapping[str, object] = (
            {"hide": (first, second)},
            {"pins": (Pin(id=first, position=1), Pin(id=second, position=3))},
            {"boost": Boost(factor=2.0, labels=(first, second))},
            {"boost": Boost(factor=2.0, filter=cheap)},
        )[number % 4]
        yield Rule(id=f"{number}", query=query, match=matches[number % 3], **consequences)  # type: ignore[arg-type]


def _with_dates(view: View, count: int) -> View:
    """Return a view in which the bundle's first labels have dates and boosts."""
    now = moments.now()
    details = (
        (
            column,
            Details(
                starts_at=now - _DAY, expires_at=now + _DAY + column, boost=1.0 + column % 7 / 4
            ),
        )
        for column in range(min(count, view.bundle.labels))
    )
    return replace(view, labels=replace(view.labels, fields=LabelFields.of(details)))


def _clicked(view: View, count: int, *, at: int | None) -> View:
    """Return a view with clicks: queries of the bundle for labels that they vote for."""
    bundle = view.bundle
    rows = np.arange(min(count, bundle.instances))
    columns = bundle.indices[bundle.indptr[rows]].tolist()
    changes = (
        PutInstance(
            sequence=row + 1,
            instance=NewInstance(
                query=f"{bundle.instance_texts[row]} clicked",
                labels=(bundle.label_ids[column],),
                at=at,
            ),
            vectors=bundle.keys[row : row + 1],
        )
        for row, column in zip(rows.tolist(), columns, strict=True)
    )
    return KnowledgeMemory(bundle).apply(tuple(changes))


if __name__ == "__main__":
    Rules.command()
