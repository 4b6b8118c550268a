"""Reads folders of results, and checks that they can be compared.

n is the number of test rows with an unfiltered label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from service.core.errors import InvalidData, InvalidInput
from training.evaluation import results
from training.evaluation.examples import Examples, read_examples
from training.evaluation.results import PER_ROW, RERANKED, Result, Results, place_of_chosen

Setting = TypeVar("Setting", int, float)  # b or lambda
SEPARATE = "separate"  # the method of Eq. 11, see training/scoring.py


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """The results of a scored run or a peer, and their folder."""

    folder: Path
    results: Results
    examples: Examples | None = None  # None for a peer

    @property
    def name(self) -> str:
        """The name in the report."""
        return self.results.name

    @property
    def chosen(self) -> Result:
        """The result of the chosen settings; the first result if none is marked."""
        return self.results.results[place_of_chosen(self.results.results)]

    @property
    def labels_alone(self) -> Result | None:
        """The result at lambda 0 and the chosen b; None for a peer."""
        return self.by_memorization.get(0.0)

    def alone(self, metric: str) -> float | None:
        """A metric of the labels' keys alone; None for a peer."""
        return None if self.labels_alone is None else self.labels_alone.metrics[metric]

    @property
    def rows(self) -> NDArray[np.float64]:
        """Metrics of each test row at the chosen settings, [n, 3]; columns as `results.PER_ROW`."""
        return self.results.rows

    @property
    def by_memorization(self) -> dict[float, Result]:
        """Results of joint prediction at the chosen b, by ascending lambda; empty for a peer."""
        at_depth = (one for one in self._joint() if one.depth == self.chosen.depth)
        return _sorted((one.memorization, one) for one in at_depth)

    @property
    def by_depth(self) -> dict[int, Result]:
        """Results of joint prediction at the chosen lambda, by ascending b; empty for a peer."""
        at_lambda = (one for one in self._joint() if one.memorization == self.chosen.memorization)
        return _sorted((one.depth, one) for one in at_lambda)

    @property
    def separate(self) -> dict[float, Result]:
        """Results of separate prediction (Eq. 11) at the chosen b, by ascending lambda."""
        separate = (one for one in self.results.results if one.method == SEPARATE)
        return _sorted((one.memorization, one) for one in separate)

    @property
    def others(self) -> list[Result]:
        """Results of a peer's other methods, which have no lambda."""
        without_lambda = (r for r in self.results.results if r.memorization is None)
        return [result for result in without_lambda if result is not self.chosen]

    @property
    def labels_are(self) -> str:
        """The name of the method at lambda 0."""
        classifiers = self.results.system == "one-versus-all"
        return "classifiers alone" if classifiers else "dual encoder"

    def setting(self, table: str, key: str) -> Any:
        """A setting of the recipe; None if there is no recipe or it does not set it."""
        return self.settings.get(f"{table}.{key}")

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of the recipe that are not None, by "table.key"."""
        return dict(_flat(self.results.settings))

    def _joint(self) -> Iterator[Result]:
        return (
            result
            for result in self.results.results
            if result.memorization is not None and result.method not in (SEPARATE, RERANKED)
        )


def _flat(settings: Mapping[str, Any], *, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, above=f"{above}{name}.")
        elif value is not None:
            yield f"{above}{name}", value


def _sorted(by_setting: Iterable[tuple[Setting | None, Result]]) -> dict[Setting, Result]:
    """Results by ascending setting, without results that lack it."""
    known = {setting: one for setting, one in by_setting if setting is not None}
    return dict(sorted(known.items()))


def read_runs(folders: Sequence[Path]) -> dict[str, list[Run]]:
    """Read runs, grouped by data set, in the order of the folders.

    Raises `InvalidInput` or `InvalidData` for a folder without results, or for two runs of a data
    set whose figures cannot be compared.
    """
    if not folders:
        raise InvalidInput("--run: name at least one folder with results")
    by_dataset: dict[str, list[Run]] = {}
    for folder in folders:
        run = read_run(folder)
        by_dataset.setdefault(run.results.dataset, []).append(run)
    for of_one in by_dataset.values():
        _check_together(of_one)
    return by_dataset


def read_run(folder: Path) -> Run:
    """Read a folder's results; raises `InvalidData` if there are none."""
    run = Run(folder=folder, results=results.read(folder), examples=read_examples(folder))
    _check_alone(run)
    return run


def _check_alone(run: Run) -> None:
    if not run.results.results:
        raise InvalidData(run.folder / results.FILE, "holds no result", field="results")
    for result in run.results.results:
        for metric in PER_ROW:
            if not isinstance(result.metrics.get(metric), int | float):
                message = f"the method {result.method!r} has no {metric}"
                raise InvalidData(run.folder / results.FILE, message, field="results")
    if run.rows.ndim != 2 or run.rows.shape[1] != len(PER_ROW):
        message = f"holds {list(run.rows.shape)}, not [n, {len(PER_ROW)}]"
        raise InvalidData(run.folder / results.ROWS, message)


def _check_together(runs: Sequence[Run]) -> None:
    """Raise `InvalidInput` for runs of one data set that cannot be compared."""
    first_of: dict[str, Run] = {}
    for run in runs:
        first = first_of.setdefault(run.name, run)
        if first is not run:
            raise InvalidInput(
                f"{first.folder} and {run.folder} are both named {run.name!r} on"
                f" {run.results.dataset!r}: score one of them again with --name, or leave it out"
            )
    for left, right in pairwise(runs):
        if left.results.propensity != right.results.propensity:
            raise InvalidInput(
                f"{left.folder} and {right.folder} differ in propensity constants on"
                f" {left.results.dataset!r}: {left.results.propensity}"
                f" and {right.results.propensity}"
            )
        if len(left.rows) != len(right.rows):
            raise InvalidInput(
                f"{left.folder} and {right.folder} differ in test rows of"
                f" {left.results.dataset!r}: {len(left.rows)} and {len(right.rows)} count"
            )
