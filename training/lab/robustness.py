"""`robustness.json`: runs under missing and wrong metadata (MOGIC, Tables 6, 8 and 9).

`robustness` writes it; its plot and the pages of `tables` and `report` read it. Metrics are in
percent. A random condition has the metrics of one draw per seed.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Natural, Share, parse
from service.core.errors import InvalidData
from training.documents import read_document, write_json

FILE = "robustness.json"
FORMAT, VERSION = "keymatch-robustness", 1
METRICS = ("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@100")  # the paper's five metrics, and R@100

Kind = Literal[
    "true",
    "predicted",
    "none",
    "not read",
    "dropped",
    "replaced",
    "in a bank of",
    "predicted in a bank of",
]

# How a system reads metadata: appended to texts, looked up as items, or not at all.
Reading = Literal["texts", "items", "nothing"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Condition:
    """A condition of the test queries' metadata: its kind, and a `share`.

    For a bank, `share` is the share of the items that it keeps; otherwise it is the share of the
    links that are dropped or replaced.
    """

    metadata: Kind
    share: Share = 0.0

    def __str__(self) -> str:
        """Format the condition: "dropped 20 %"."""
        return f"{self.metadata} {100 * self.share:.0f} %" if self.share else self.metadata


TRUE, PREDICTED = Condition(metadata="true"), Condition(metadata="predicted")
NO_ITEMS, NOT_READ = Condition(metadata="none"), Condition(metadata="not read")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Measured:
    """The metrics under a condition: one entry per draw, or one if nothing is random."""

    condition: Condition
    draws: Annotated[tuple[dict[str, float], ...], Field(min_length=1)]

    def mean(self, metric: str) -> float:
        """The mean over the draws."""
        return fmean(draw[metric] for draw in self.draws)

    def deviation(self, metric: str) -> float | None:
        """The standard deviation of the draws (n - 1); None for a single draw."""
        values = [draw[metric] for draw in self.draws]
        return stdev(values) if len(values) > 1 else None

    def shown(self, metric: str) -> str:
        """Format the mean and, for several draws, the deviation: "54.21 ± 0.12"."""
        mean, deviation = f"{self.mean(metric):.2f}", self.deviation(metric)
        return mean if deviation is None else f"{mean} ± {deviation:.2f}"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunRobustness:
    """One run under all conditions; `guided_by` names the oracle that guided its training."""

    run: str
    system: str
    reads: Reading
    guided_by: str | None
    measured: Annotated[tuple[Measured, ...], Field(min_length=1)]

    @property
    def role(self) -> str:
        """The run's name in the paper's tables."""
        if self.reads == "texts":
            return "oracle"
        return self.system if self.guided_by is None else f"MOGIC ({self.system})"

    def under(self, condition: Condition) -> Measured | None:
        """Return the metrics under a condition, None if it was not measured."""
        return next((one for one in self.measured if one.condition == condition), None)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Robustness:
    """Runs on one data set under equal conditions; random ones use the same `seeds`."""

    dataset: str
    seeds: tuple[Natural, ...]
    precision: str
    runs: Annotated[tuple[RunRobustness, ...], Field(min_length=1)]


def write(robustness: Robustness, folder: Path) -> None:
    """Write `robustness.json` into a folder."""
    document = {"format": FORMAT, "version": VERSION, **asdict(robustness)}
    write_json(folder / FILE, document)


def read(path: Path) -> Robustness:
    """Read a file of `robustness`; raises `InvalidData` or `InvalidConfig`, which name the file."""
    document = read_document(path, format_name=FORMAT, version=VERSION)
    robustness = parse(Robustness, document, source=str(path))
    for draw in (draw for run in robustness.runs for one in run.measured for draw in one.draws):
        if missing := [metric for metric in METRICS if metric not in draw]:
            raise InvalidData(path, f"a draw has no {missing[0]}", field="runs")
    return robustness
