"""Facts about the runs of a data set: rows, constants, choices, settings and hardware."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.report.runs import Run


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about one data set; `choices` has (name, sentence) of each run."""

    dataset: str
    rows: int  # test rows with an unfiltered label
    unlabelled: int
    a: float | None
    b: float | None
    choices: tuple[tuple[str, str], ...]
    devices: tuple[str, ...]  # with more than one, training times cannot be compared


def facts_of(runs: Sequence[Run]) -> Facts:
    """The facts of one data set's runs, as `read_runs` returned them."""
    first = runs[0].results
    trained = [run for run in runs if run.results.training_seconds is not None]
    devices = dict.fromkeys(_device(run) for run in trained)
    return Facts(
        dataset=first.dataset,
        rows=len(runs[0].rows),
        unlabelled=int(runs[0].chosen.metrics.get("rows without labels", 0)),
        a=first.propensity.get("a"),
        b=first.propensity.get("b"),
        choices=tuple((run.name, choice(run)) for run in runs),
        devices=tuple(devices),
    )


def choice(run: Run) -> str:
    """A sentence that says how lambda, b and temperature of a run were chosen."""
    held_out, chosen = run.results.held_out_rows, run.chosen
    numbers = "its settings"
    if chosen.memorization is not None:
        at = "" if chosen.tau is None else f" at temperature {chosen.tau:g}"
        numbers = f"λ {chosen.memorization:g} and b {chosen.depth}{at}"
    if held_out:
        return f"{numbers}, chosen on {held_out:,} held-out training rows"
    if not run.results.settings:
        return f"{numbers} as they were given; nothing was chosen"
    return f"{numbers} as they were given; no rows were held out"


def listed(facts: Mapping[str, Any], *, above: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as (table.key, value) lines; unset ones are left out."""
    for name, value in facts.items():
        place = f"{above}.{name}" if above else name
        if isinstance(value, Mapping):
            yield from listed(value, above=place)
        elif isinstance(value, list | tuple):
            yield place, ", ".join(map(str, value))
        elif value is not None:
            yield place, str(value)


def _device(run: Run) -> str:
    device = run.results.hardware.get("device")
    processes = run.results.hardware.get("processes")
    name = str(device) if device else "hardware that is not named"
    return f"{processes} times {name}" if isinstance(processes, int) and processes > 1 else name
