"""The orderings that the RAE-XMC paper reports, and whether they hold for these runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from training.evaluation.results import PER_ROW, Result
from training.report.runs import Run


@dataclass(frozen=True, kw_only=True)
class Side:
    """A figure, with its lambda if the comparison does not name it."""

    value: float
    memorization: float | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One comparison: the paper expects `better` to be above `worse`."""

    metric: str
    better: Side
    worse: Side
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Line:
    """The comparisons of one pair, a metric each; `subject` names the pair."""

    subject: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """A claim of one of the paper's tables; `missing` lists what could not be compared."""

    source: str
    claim: str
    lines: tuple[Line, ...]
    missing: tuple[str, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """The findings of all lines."""
        return [finding for line in self.lines for finding in line.findings]

    @property
    def holds(self) -> bool:
        """Whether every comparison holds as in the paper."""
        return all(finding.holds for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The result in words, with the number of comparisons."""
        total = len(self.findings)
        if not total:
            return "not compared"
        wrong = sum(not finding.holds for finding in self.findings)
        return f"does not hold in {wrong} of {total}" if wrong else f"holds in all {total}"


def orderings(runs: Sequence[Run]) -> list[Ordering]:
    """Check every ordering that these runs allow."""
    checks = (in_batch_instances, hard_negatives, joint, memory, inner_memorization)
    checked = (check(runs) for check in checks)
    return [ordering for ordering in checked if ordering.lines or ordering.missing]


def joint(runs: Sequence[Run]) -> Ordering:
    """Table 4: one search over instances and labels against two (Eq. 7 against Eq. 11)."""
    return Ordering(
        source="Table 4",
        claim="joint prediction is no worse than separate prediction at the same λ",
        lines=tuple(
            _line(f"{run.name}, λ {memorization:g}", run.by_memorization[memorization], separate)
            for run in runs
            for memorization, separate in run.separate.items()
            if memorization in run.by_memorization
        ),
    )


def memory(runs: Sequence[Run]) -> Ordering:
    """Table 5: the same encoder with the memory and without."""
    lines, missing = [], []
    for run in runs:
        plain, chosen = run.by_memorization.get(0.0), run.chosen
        if plain is None:
            continue
        if chosen.memorization == 0.0:
            missing.append(f"{run.name}: λ 0 was chosen, which is no memory")
        else:
            lines.append(_line(f"{run.name}, λ {chosen.memorization:g} and 0", chosen, plain))
    return Ordering(
        source="Table 5",
        claim="an encoder with the memory is no worse than the same encoder without",
        lines=tuple(lines),
        missing=tuple(missing),
    )


def inner_memorization(runs: Sequence[Run]) -> Ordering:
    """Table 8: the best lambda lies between 0 and 1."""
    return Ordering(
        source="Table 8",
        claim="the best λ between 0 and 1 is better than both of them",
        lines=tuple(
            Line(
                subject=run.name,
                findings=tuple(_inner(run, metric) for metric in ("P@1", "P@5")),
            )
            for run in runs
            if {0.0, 1.0} < set(run.by_memorization)
        ),
    )


def in_batch_instances(runs: Sequence[Run]) -> Ordering:
    """Table 3: the batch's instances as negatives, all else being equal."""
    ours = _contrasted(runs)
    return _ablation(
        ours,
        without=[run for run in ours if not _has_instances(run)],
        differ={("system", "in_batch_instances")},
        claim="in-batch instances as negatives do no harm",
    )


def hard_negatives(runs: Sequence[Run]) -> Ordering:
    """Table 3: mined negatives, all else being equal; the paper claims it for P@1 only."""
    ours = _contrasted(runs)
    return _ablation(
        ours,
        without=[run for run in ours if run.setting("batch", "hard_negatives") == 0],
        # Without mined negatives, the refresh settings have no effect.
        differ={("batch", "hard_negatives"), *(("refresh", key) for key in REFRESH)},
        claim="hard negatives do no harm (in the paper P@1 always gains, R@100 not always)",
    )


def _contrasted(runs: Sequence[Run]) -> list[Run]:
    """Runs trained with Eq. 10 or with Eq. 9 (dual encoders): Eq. 10 without instances."""
    return [run for run in runs if run.results.system in CONTRASTED and run.results.settings]


def _has_instances(run: Run) -> bool:
    in_batch = run.setting("system", "in_batch_instances") is not False
    return run.results.system == "rae" and in_batch


CONTRASTED = ("rae", "dual-encoder")
REFRESH = ("every", "every_epochs", "first", "top", "library")


def _ablation(
    runs: Sequence[Run], *, without: Sequence[Run], differ: set[tuple[str, str]], claim: str
) -> Ordering:
    pairs = [
        (full, bare)
        for full, bare in permutations(runs, 2)
        if bare in without and full not in without and _kept(full, differ) == _kept(bare, differ)
    ]
    paired = {bare.name for _, bare in pairs}
    return Ordering(
        source="Table 3",
        claim=claim,
        lines=tuple(
            _line(f"{full.name} against {bare.name}", full.chosen, bare.chosen)
            for full, bare in pairs
        ),
        missing=tuple(
            f"{bare.name}: no other run differs from it in this alone"
            for bare in without
            if bare.name not in paired
        ),
    )


def _kept(run: Run, differ: set[tuple[str, str]]) -> dict[tuple[str, str], Any]:
    """The settings that two runs must share for one to be an ablation of the other."""
    return {place: value for place, value in _numbers(run) if place not in differ}


def _numbers(run: Run) -> Iterator[tuple[tuple[str, str], Any]]:
    for table, values in run.results.settings.items():
        if table == "system":
            yield (table, "in_batch_instances"), _has_instances(run)
            stated = ("name", "in_batch_instances")  # by the line above
            yield from (((table, key), value) for key, value in values.items() if key not in stated)
        elif isinstance(values, dict):
            yield from (((table, key), value) for key, value in values.items())
        else:
            yield ("", table), values


def _line(subject: str, better: Result, worse: Result) -> Line:
    return Line(
        subject=subject,
        findings=tuple(
            Finding(
                metric=metric,
                better=Side(value=better.metrics[metric]),
                worse=Side(value=worse.metrics[metric]),
                holds=better.metrics[metric] >= worse.metrics[metric],
            )
            for metric in PER_ROW
        ),
    )


def _inner(run: Run, metric: str) -> Finding:
    sides = [
        Side(value=one.metrics[metric], memorization=memorization)
        for memorization, one in run.by_memorization.items()
    ]
    ends = [side for side in sides if side.memorization in (0.0, 1.0)]
    inside = max((side for side in sides if side not in ends), key=lambda side: side.value)
    end = max(ends, key=lambda side: side.value)
    return Finding(metric=metric, better=inside, worse=end, holds=inside.value > end.value)
