"""Finds oracles, disciples and ablations of MOGIC by the settings of runs.

An oracle is a run that guides another one. A disciple is a guided run. Its family are the runs of
the same recipe, without guidance or with other guidance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from service.core.config import parse
from service.core.errors import InvalidInput
from training.datasets.metadata_texts import MetadataSettings
from training.evaluation import results
from training.evaluation.results import oracle_of
from training.lab.report.runs import Run
from training.models.settings import GuidanceSettings


@dataclass(frozen=True, kw_only=True, eq=False)
class Disciple:
    """A guided run, its oracle, and how the oracle guided it."""

    run: Run
    oracle: Run
    guidance: GuidanceSettings

    @property
    def as_in_the_paper(self) -> bool:
        """Check that the guidance has the paper's settings."""
        return self.differs_in()

    def differs_in(self, *settings: str) -> bool:
        """Check that the guidance differs from the paper's at most in these settings."""
        usual = GuidanceSettings(oracle=self.guidance.oracle)
        same = {name: getattr(usual, name) for name in settings}
        return replace(self.guidance, **same) == usual


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """Runs of one recipe: the guided ones, and `alone` without guidance, if there is one."""

    alone: Run | None
    disciples: tuple[Disciple, ...]

    @property
    def first(self) -> Run:
        """Any run of the family, to read what all of them share."""
        return self.disciples[0].run

    def by_oracle(self) -> list[list[Disciple]]:
        """The disciples grouped by oracle; oracles with guidance as in the paper come first."""
        groups: dict[str, list[Disciple]] = {}
        for disciple in sorted(self.disciples, key=lambda one: not one.as_in_the_paper):
            groups.setdefault(disciple.oracle.name, []).append(disciple)
        return list(groups.values())


def is_of_mogic(run: Run) -> bool:
    """Check whether a run is guided or reads metadata appended to its texts."""
    return oracle_of(run.results.settings) is not None or reads_metadata_of(run) != "none"


def reads_metadata_of(run: Run) -> str:
    """Which texts a run reads with metadata: "none", "queries", "labels" or "both"."""
    table = run.results.settings.get("metadata", {})
    return parse(MetadataSettings, table, source=_source(run)).append


def oracles(runs: Sequence[Run]) -> list[Run]:
    """The runs that guide another one, or that read metadata as oracles do."""
    guiding = {disciple.oracle.name for family in families(runs) for disciple in family.disciples}
    return [run for run in runs if run.name in guiding or reads_metadata_of(run) != "none"]


def families(runs: Sequence[Run]) -> list[Family]:
    """The families with a guided run, in the order of the runs.

    Raises `InvalidInput` for a guided run whose oracle is not among the runs.
    """
    kin: list[list[Run]] = []
    for run in runs:
        group = next((group for group in kin if same_recipe(group[0], run)), None)
        if group is None:
            kin.append([run])
        else:
            group.append(run)
    by_folder = {run.folder.name: run for run in runs}
    found = []
    for group in kin:
        disciples = [_disciple(run, by_folder) for run in group if oracle_of(run.results.settings)]
        alone = [run for run in group if not oracle_of(run.results.settings)]
        if disciples:
            family = Family(alone=alone[0] if alone else None, disciples=tuple(disciples))
            found.append(family)
    return found


def _disciple(run: Run, by_folder: Mapping[str, Run]) -> Disciple:
    table = run.results.settings["guidance"]
    name = Path(table["oracle"]).name
    if name not in by_folder:
        raise InvalidInput(
            f"{run.folder} was guided by {name!r}, which is not among the results: put its folder"
            f" with {results.FILE} beside it"
        )
    guidance = parse(GuidanceSettings, table, source=_source(run))
    return Disciple(run=run, oracle=by_folder[name], guidance=guidance)


def same_recipe(left: Run, right: Run, *, but: str | None = None) -> bool:
    """Compare the settings of two runs, except for the guidance and the key `but` of `[system]`.

    A setting that only one run has is ignored, because the other run's version did not know it. In
    `[system]` it counts: only settings that differ from the default are stored there.
    """
    if left.results.system != right.results.system:
        return False
    one, other = left.results.settings, right.results.settings
    return all(
        _same(name, one.get(name), other.get(name), but=but)
        for name in (one.keys() | other.keys()) - {"guidance"}
    )


def _same(name: str, one: Any, other: Any, *, but: str | None) -> bool:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one == other or (isinstance(one or other, dict) and name != "system")
    if name == "system":
        return _without(one, but) == _without(other, but)
    return all(one[key] == other[key] for key in one.keys() & other.keys())


def _without(table: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != key}


def _source(run: Run) -> str:
    return str(run.folder / results.FILE)
