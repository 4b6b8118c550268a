"""What missing and wrong metadata of the test queries cost, on disk: MOGIC's Tables 6, 8 and 9.

`robustness` writes it, the pages of `tables` and `report` and its own plot read it. Metrics are in
percent. A condition that is drawn at random has the metrics of one draw for each seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Natural, Share, parse
from service.core.errors import InvalidData
from service.core.files.atomic import write_file

FILE = "robustness.json"
FORMAT, VERSION = "keymatch-robustness", 1
METRICS = ("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@100")  # the paper's five, and ours

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

# How a system reads metadata: appended to texts, as items that it looks up, or not at all.
Reading = Literal["texts", "items", "nothing"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Condition:
    """What the test queries know: `metadata` is its kind, `share` how much of it is changed.

    In a bank, `share` is what is left of the items; otherwise it is the share of the links that is
    dropped or replaced.
    """

    metadata: Kind
    share: Share = 0.0

    def __str__(self) -> str:
        """Such as "dropped 20 %"."""
        return f"{self.metadata} {100 * self.share:.0f} %" if self.share else self.metadata


TRUE, PREDICTED = Condition(metadata="true"), Condition(metadata="predicted")
NO_ITEMS, NOT_READ = Condition(metadata="none"), Condition(metadata="not read")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Measured:
    """The metrics under a condition: of each draw, or of the only way where nothing is drawn."""

    condition: Condition
    draws: Annotated[tuple[dict[str, float], ...], Field(min_length=1)]

    def mean(self, metric: str) -> float:
        """The mean over the draws."""
        return fmean(draw[metric] for draw in self.draws)

    def deviation(self, metric: str) -> float | None:
        """The standard deviation of the draws (n - 1); None for a single one."""
        values = [draw[metric] for draw in self.draws]
        return stdev(values) if len(values) > 1 else None

    def shown(self, metric: str) -> str:
        """The mean, with the deviation where there are several draws: "54.21 ± 0.12"."""
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
        """What the run is in the paper's tables."""
        if self.reads == "texts":
            return "oracle"
        return self.system if self.guided_by is None else f"MOGIC ({self.system})"

    def under(self, condition: Condition) -> Measured | None:
        """What was measured under a condition."""
        return next((one for one in self.measured if one.condition == condition), None)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Robustness:
    """Runs on one data set under equal conditions, those at random drawn by the same `seeds`."""

    dataset: str
    seeds: tuple[Natural, ...]
    precision: str
    runs: Annotated[tuple[RunRobustness, ...], Field(min_length=1)]


def write(robustness: Robustness, folder: Path) -> None:
    """Write `robustness.json` into a folder."""
    document = {"format": FORMAT, "version": VERSION, **asdict(robustness)}
    write_file(folder / FILE, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def read(path: Path) -> Robustness:
    """Read a file of `robustness`; raises `InvalidData` or `InvalidConfig`, which name it."""
    try:
        document: Any = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidData(path, f"cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidData(path, f"not valid JSON: {error}") from error
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise InvalidData(path, f"must be {FORMAT!r}", field="format")
    if document.pop("version", None) != VERSION:
        message = f"must be {VERSION}, the version that this build reads"
        raise InvalidData(path, message, field="version")
    robustness = parse(Robustness, document, source=str(path))
    for draw in _draws(robustness.runs):
        if missing := [metric for metric in METRICS if metric not in draw]:
            raise InvalidData(path, f"a draw has no {missing[0]}", field="runs")
    return robustness


def _draws(runs: Iterable[RunRobustness]) -> Iterable[dict[str, float]]:
    return (draw for run in runs for one in run.measured for draw in one.draws)
