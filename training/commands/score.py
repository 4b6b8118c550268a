"""`python -m training score`: an encoder's metrics on the test rows, by every way of prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from cyclopts import Parameter
from rich.console import Console

from service.command_line import open_console
from service.core.errors import InvalidInput, MissingExtra
from service.core.files.atomic import refuse_unwritable
from training.checkpoints.choices import Choices
from training.checkpoints.run_json import BEST, read_run_on
from training.commands.options import ScoringPrecision
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, require_test_rows
from training.evaluation import results
from training.evaluation.results import Check, Results, rows_of_chosen
from training.models.encoder_location import find_encoder
from training.progress import say, stages

if TYPE_CHECKING:
    from training.experiments.sweeps import EncoderScores

SHOWN = ("P@1", "P@5", "R@100", "PSP@5")


def score(
    *,
    data: Path,
    run: Path | None = None,
    encoder: str | None = None,
    out: Path | None = None,
    precision: ScoringPrecision = "fp32",
    name: Annotated[str | None, Parameter(help="The name in the report.")] = None,
) -> None:
    """Measure a run's best checkpoint, or any encoder, on the test rows of a data set.

    Every key is scanned, in fp16 as it is served. The result with the lambda and b that were chosen
    on held-out rows is marked as chosen; all others are sweeps. Writes results.json and rows.npz.

    Parameters
    ----------
    data
        The data set's folder.
    run
        A run's folder; the results are written into it.
    encoder
        In place of a run: an encoder as `export bundle` takes it.
    out
        The folder for the results of `--encoder`.
    """
    target = run if run is not None else out
    if (run is None) == (encoder is None) or (encoder is None) != (out is None) or target is None:
        raise InvalidInput("give either --run, or --encoder and --out")
    refuse_unwritable(target)
    if encoder is not None:
        find_encoder(encoder)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    facts = read_run_on(run, dataset.name) if run is not None else {}
    console = open_console()
    scores = _scores(run, encoder, dataset, precision, console)
    measured = Results(
        name=name or facts.get("recipe") or str(encoder),
        system=scores.choices.system,
        dataset=dataset.name,
        propensity={"a": dataset.propensity.a, "b": dataset.propensity.b},
        results=tuple(result for result, _ in scores.results),
        rows=rows_of_chosen(scores.results),
        precision=precision,
        **(
            _facts_of_run(run, facts)
            if run is not None
            else {"held_out_rows": scores.held_out_rows}
        ),
    )
    results.write(measured, target)
    for result in measured.results:
        if result.chosen:
            shown = ", ".join(f"{metric} {result.metrics[metric]:.2f}" for metric in SHOWN)
            line = f"{target}: {result.method}, lambda {result.memorization}: {shown}"
            console.print(line, soft_wrap=True)


def _scores(
    run: Path | None, encoder: str | None, dataset: Dataset, precision: Any, console: Console
) -> EncoderScores:
    """Encode, print the choices, then rank; each stage shows its share and the time left."""
    say(f"opening the encoder {encoder or run}")
    try:
        from training.experiments.sweeps import EncoderScores, open_scoring
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    folder = run / BEST if run is not None else None
    with stages(console) as report:
        scoring = open_scoring(
            str(folder or encoder), dataset, folder=folder, precision=precision, report=report
        )
        console.print(_described(scoring.choices), soft_wrap=True)
        return EncoderScores(
            choices=scoring.choices,
            results=list(scoring.results(report)),
            held_out_rows=scoring.held_out_rows,
        )


def _described(choices: Choices) -> str:
    return (
        f"chosen on held-out rows: tau {choices.tau:g}, lambda {choices.memorization:g},"
        f" b {choices.depth}"
    )


def _facts_of_run(run: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Results` that only a run has."""
    return {
        "held_out_rows": facts["settings"]["validation"]["rows"],
        "training_seconds": facts["progress"]["seconds"],
        "history": tuple(_history(run)),
        "settings": facts.get("settings", {}),
        "hardware": facts.get("hardware", {}),
    }


def _history(run: Path) -> list[Check]:
    """The checks on held-out rows during training, from metrics.jsonl."""
    history: dict[tuple[int, float], Check] = {}
    for line in (run / "metrics.jsonl").read_bytes().splitlines():
        entry = orjson.loads(line)
        if entry["kind"] != "validation":
            continue
        values: dict[str, float] = {}
        for key, value in entry.items():
            metric, at, memorization = key.partition(" at ")
            if at:
                values[metric], best = value, float(memorization)
        history[entry["step"], best] = Check(
            step=entry["step"], seconds=entry["seconds"], memorization=best, metrics=values
        )
    return list(history.values())
