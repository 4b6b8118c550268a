"""Folders of results, read and checked against each other.

n are the test rows with a label that counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.core.errors import InvalidData, InvalidInput
from training.evaluation import results
from training.evaluation.results import PER_ROW, Result, Results, place_of_chosen

SEPARATE = "separate"  # the method of Eq. 11, see training/sweeps.py


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A scored run or a peer, and where it was read from."""

    folder: Path
    results: Results

    @property
    def name(self) -> str:
        """What the report calls it."""
        return self.results.name

    @property
    def chosen(self) -> Result:
        """The prediction that was chosen; the first one where none is marked."""
        return self.results.results[place_of_chosen(self.results.results)]

    @property
    def rows(self) -> NDArray[np.float64]:
        """The chosen prediction's rows, [n, 3], see `results.PER_ROW`."""
        return self.results.rows

    @property
    def by_memorization(self) -> dict[float, Result]:
        """The joint prediction at the chosen b by lambda, ascending; empty for a peer."""
        found = {
            one.memorization: one
            for one in self._joint()
            if one.depth == self.chosen.depth and one.memorization is not None
        }
        return dict(sorted(found.items()))

    @property
    def by_depth(self) -> dict[int, Result]:
        """The joint prediction at the chosen lambda by b, ascending; empty for a peer."""
        found = {
            one.depth: one
            for one in self._joint()
            if one.memorization == self.chosen.memorization and one.depth is not None
        }
        return dict(sorted(found.items()))

    @property
    def separate(self) -> dict[float, Result]:
        """Eq. 11 at the chosen b by lambda, ascending."""
        found = {
            one.memorization: one
            for one in self.results.results
            if one.method == SEPARATE and one.memorization is not None
        }
        return dict(sorted(found.items()))

    @property
    def others(self) -> list[Result]:
        """Further ways of a peer, which has no lambda."""
        ways = self.results.results
        return [one for one in ways if one.memorization is None and one is not self.chosen]

    @property
    def labels_are(self) -> str:
        """What is searched at lambda 0."""
        classifiers = self.results.system == "one-versus-all"
        return "classifiers alone" if classifiers else "dual encoder"

    def setting(self, table: str, key: str) -> Any:
        """A number of the recipe; None where there is no recipe or it does not say."""
        found = self.results.settings.get(table)
        return found.get(key) if isinstance(found, dict) else None

    def _joint(self) -> Iterator[Result]:
        return (
            one
            for one in self.results.results
            if one.memorization is not None and one.method != SEPARATE
        )


def read_runs(folders: Sequence[Path]) -> dict[str, list[Run]]:
    """Read runs by data set, in the order of the folders.

    Raises `InvalidInput` or `InvalidData` for a folder without results, and for two whose figures
    cannot stand side by side.
    """
    if not folders:
        raise InvalidInput("--runs: name at least one folder with results")
    by_dataset: dict[str, list[Run]] = {}
    for folder in folders:
        run = Run(folder=folder, results=results.read(folder))
        _check_alone(run)
        by_dataset.setdefault(run.results.dataset, []).append(run)
    for runs in by_dataset.values():
        _check_together(runs)
    return by_dataset


def _check_alone(run: Run) -> None:
    if not run.results.results:
        raise InvalidData(run.folder / results.FILE, "holds no result", field="results")
    for one in run.results.results:
        for metric in PER_ROW:
            if not isinstance(one.metrics.get(metric), int | float):
                message = f"the method {one.method!r} has no {metric}"
                raise InvalidData(run.folder / results.FILE, message, field="results")
    if run.rows.ndim != 2 or run.rows.shape[1] != len(PER_ROW):
        message = f"holds {list(run.rows.shape)}, not [n, {len(PER_ROW)}]"
        raise InvalidData(run.folder / results.ROWS, message)


def _check_together(runs: Sequence[Run]) -> None:
    """Refuse what would be a comparison of unlike things."""
    first_of: dict[str, Run] = {}
    for run in runs:
        first = first_of.setdefault(run.name, run)
        if first is not run:
            raise InvalidInput(
                f"{first.folder} and {run.folder} are both named {run.name!r} on"
                f" {run.results.dataset!r}: score one again with --name, or leave it out"
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
