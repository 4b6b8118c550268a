"""`python -m training score`: an encoder's figures on the test rows, by every way of prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
from cyclopts import Parameter
from rich.console import Console

from service.core.errors import InvalidInput, MissingExtra
from training.checkpoints.run_json import BEST, read_run_on
from training.commands.options import AskedPrecision
from training.datasets import lf_xmc
from training.evaluation import results
from training.evaluation.results import Check, Results, rows_of_chosen


def score(
    *,
    data: Path,
    run: Path | None = None,
    encoder: str | None = None,
    out: Path | None = None,
    precision: AskedPrecision = "fp32",
    name: Annotated[str | None, Parameter(help="How the report calls it.")] = None,
) -> None:
    """Measure a run's best checkpoint, or any encoder, on the test rows of a data set.

    Every key is scanned, in fp16 as it is served. The figures at the lambda and b that were chosen
    on held-out rows are marked; all others are sweeps. Writes results.json and rows.npz.

    Parameters
    ----------
    data
        The data set's folder.
    run
        A run's folder; the results are written into it.
    encoder
        In place of a run: an encoder as `export bundle` takes it.
    out
        The results' folder, where an encoder is given.
    """
    if (run is None) == (encoder is None) or (encoder is None) != (out is None):
        raise InvalidInput("give either --run, or --encoder and --out")
    dataset = lf_xmc.read(data)
    try:
        from training.experiments.sweeps import score_encoder
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    facts = read_run_on(run, dataset.name) if run is not None else {}
    folder = run / BEST if run is not None else None
    console = Console()
    with console.status("encoding and ranking"):
        measured = score_encoder(
            str(folder) if folder is not None else str(encoder),
            dataset,
            folder=folder,
            precision=precision,
        )
    target = run if run is not None else out
    assert target is not None
    results.write(
        Results(
            name=name or facts.get("recipe") or str(encoder),
            system=measured.choices.system,
            dataset=dataset.name,
            propensity={"a": dataset.propensity.a, "b": dataset.propensity.b},
            results=tuple(result for result, _ in measured.found),
            rows=rows_of_chosen(measured.found),
            held_out_rows=facts["settings"]["validation"]["rows"]
            if facts
            else measured.held_out_rows,
            training_seconds=facts["progress"]["seconds"] if facts else None,
            history=tuple(_history(run)) if run is not None else (),
            settings=facts.get("settings", {}),
            hardware=facts.get("hardware", {}),
            precision=precision,
        ),
        target,
    )
    for result, _ in measured.found:
        if result.chosen:
            shown = ", ".join(
                f"{metric} {result.metrics[metric]:.2f}"
                for metric in ("P@1", "P@5", "R@100", "PSP@5")
            )
            console.print(f"{target}: {result.method}, lambda {result.memorization}: {shown}")


def _history(run: Path) -> list[Check]:
    """The checks on held-out rows, from metrics.jsonl."""
    history: dict[tuple[int, float], Check] = {}
    for line in (run / "metrics.jsonl").read_bytes().splitlines():
        entry = orjson.loads(line)
        if entry["kind"] != "validation":
            continue
        values: dict[str, float] = {}
        for key, value in entry.items():
            metric, at, memorization = key.partition(" at ")
            if at:
                values[metric], last = value, float(memorization)
        history[entry["step"], last] = Check(
            step=entry["step"], seconds=entry["seconds"], memorization=last, metrics=values
        )
    return list(history.values())
