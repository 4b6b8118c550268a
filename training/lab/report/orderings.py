"""The orderings that the RAE-XMC paper reports, and whether they hold for these runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from training.evaluation.results import PER_ROW, Result
from training.lab.report.runs import Run

CONTRASTED = ("rae", "dual-encoder")
REFRESH = tuple(f"refresh.{key}" for key in ("every", "every_epochs", "first", "top", "library"))


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """A claim of a table in the paper; `holds` tells for each comparison whether it is true."""

    source: str
    claim: str
    holds: dict[str, list[bool]]

    @property
    def verdict(self) -> str:
        """The result in words, with the number of comparisons."""
        findings = [holds for subject in self.holds.values() for holds in subject]
        wrong, total = findings.count(False), len(findings)
        return f"does not hold in {wrong} of {total}" if wrong else f"holds in all {total}"


def orderings(runs: Sequence[Run]) -> list[Ordering]:
    """Check every ordering that these runs allow."""
    checks = (in_batch_instances, hard_negatives, joint, memory, inner_memorization)
    return [ordering for check in checks if (ordering := check(runs)).holds]


def joint(runs: Sequence[Run]) -> Ordering:
    """Table 4: one joint search over instances and labels against two searches (Eq. 7, Eq. 11)."""
    return Ordering(
        source="Table 4",
        claim="joint prediction is no worse than separate prediction at the same λ",
        holds={
            f"{run.name}, λ {value:g}": _no_worse(run.by_memorization[value], separate)
            for run in runs
            for value, separate in run.separate.items()
            if value in run.by_memorization
        },
    )


def memory(runs: Sequence[Run]) -> Ordering:
    """Table 5: the same encoder with the memory and without."""
    return Ordering(
        source="Table 5",
        claim="an encoder with the memory is no worse than the same encoder without",
        holds={
            run.name: _no_worse(run.chosen, run.by_memorization[0.0])
            for run in runs
            if 0.0 in run.by_memorization and run.chosen.memorization != 0.0
        },
    )


def inner_memorization(runs: Sequence[Run]) -> Ordering:
    """Table 8: the best lambda lies between 0 and 1."""
    return Ordering(
        source="Table 8",
        claim="the best λ between 0 and 1 is better than both of them",
        holds={
            run.name: [_is_best_inside(run, metric) for metric in ("P@1", "P@5")]
            for run in runs
            if {0.0, 1.0} < set(run.by_memorization)
        },
    )


def in_batch_instances(runs: Sequence[Run]) -> Ordering:
    """Table 3: the batch's instances as negatives, with all other settings equal."""
    ours = _contrasted(runs)
    return _ablation(
        ours,
        without=[run for run in ours if not _has_instances(run)],
        differ=("system.in_batch_instances",),
        claim="in-batch instances as negatives do no harm",
    )


def hard_negatives(runs: Sequence[Run]) -> Ordering:
    """Table 3: mined negatives, other settings equal; the paper claims a gain for P@1 only."""
    ours = _contrasted(runs)
    return _ablation(
        ours,
        without=[run for run in ours if run.setting("batch", "hard_negatives") == 0],
        # Without mined negatives, the refresh settings have no effect.
        differ=("batch.hard_negatives", *REFRESH),
        claim="hard negatives do no harm (in the paper P@1 always gains, R@100 not always)",
    )


def _contrasted(runs: Sequence[Run]) -> list[Run]:
    """The runs trained with Eq. 10, or with Eq. 9, which is Eq. 10 without instances (DE)."""
    return [run for run in runs if run.results.system in CONTRASTED and run.results.settings]


def _has_instances(run: Run) -> bool:
    in_batch = run.setting("system", "in_batch_instances") is not False
    return run.results.system == "rae" and in_batch


def _ablation(
    runs: Sequence[Run], *, without: Sequence[Run], differ: Sequence[str], claim: str
) -> Ordering:
    """Compare each run with the runs of `without` that have all other settings in common."""
    kept = {
        run.name: {name: value for name, value in _compared(run).items() if name not in differ}
        for run in runs
    }
    return Ordering(
        source="Table 3",
        claim=claim,
        holds={
            f"{full.name} against {bare.name}": _no_worse(full.chosen, bare.chosen)
            for full, bare in permutations(runs, 2)
            if bare in without and full not in without and kept[full.name] == kept[bare.name]
        },
    )


def _compared(run: Run) -> dict[str, Any]:
    """The settings, with one for in-batch instances in place of the system's name."""
    settings = {**run.settings, "system.in_batch_instances": _has_instances(run)}
    settings.pop("system.name", None)
    return settings


def _no_worse(better: Result, worse: Result) -> list[bool]:
    return [better.metrics[metric] >= worse.metrics[metric] for metric in PER_ROW]


def _is_best_inside(run: Run, metric: str) -> bool:
    figures = {value: one.metrics[metric] for value, one in run.by_memorization.items()}
    ends = (figures.pop(0.0), figures.pop(1.0))
    return max(figures.values()) > max(ends)
