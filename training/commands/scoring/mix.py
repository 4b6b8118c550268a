"""`python -m training mix`: the scores of several runs mixed, measured on the test rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from service.command_line import open_console
from service.core.errors import InvalidInput, MissingExtra
from service.core.files.atomic import refuse_unwritable
from training.commands.options import MANY, ScoringPrecision
from training.commands.scoring.figures import figures
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, require_test_rows
from training.evaluation import results
from training.evaluation.results import Results, rows_of_chosen
from training.models.precision import Precision
from training.progress import say, stages

if TYPE_CHECKING:
    from training.combining.runs import FinishedRun
    from training.combining.score_mix import MixedScores

SYSTEM = "mix"


def mix(
    *,
    run: Annotated[tuple[Path, ...], MANY],
    data: Path,
    out: Path,
    name: str | None = None,
    precision: ScoringPrecision = "fp32",
) -> None:
    """Mix the scores of two or three runs, and measure the mix on the test rows of a data set.

    Each run's memory answers as its own chosen settings say; the scores of all their candidates are
    mixed. Weights and normalisation are chosen on the held-out rows, which must be the same in all
    runs. Writes results.json and rows.npz; a query costs an encoding and a search in each run.

    Parameters
    ----------
    run
        The runs' folders: --run A --run B, or --run A B.
    data
        The data set's folder.
    out
        The folder for the results.
    name
        The name in the report. Default: the names of the runs.
    """
    _check_target(out, run)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    try:
        from training.combining.runs import open_runs
        from training.combining.score_mix import MOST_RUNS, mixed_scores
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    opened = open_runs(run, dataset, most=MOST_RUNS)
    console = open_console()
    say(f"mixing {', '.join(one.name for one in opened)}")
    with stages(console) as report:
        scores = mixed_scores(opened, dataset, precision=precision, report=report)
    name = name or " + ".join(one.name for one in opened)
    results.write(_results(name, dataset, opened, scores, precision), out)
    console.print(*_said(scores, out), sep="\n", soft_wrap=True)


def _check_target(out: Path, runs: Sequence[Path]) -> None:
    """Raise `InvalidInput` for a run's own folder, whose results stay."""
    if any(out.resolve() == run.resolve() for run in runs):
        raise InvalidInput("--out must be another folder than those of the runs")
    refuse_unwritable(out)


def _results(
    name: str,
    dataset: Dataset,
    runs: Sequence[FinishedRun],
    scores: MixedScores,
    precision: Precision,
) -> Results:
    return Results(
        name=name,
        system=SYSTEM,
        dataset=dataset.name,
        propensity={"a": dataset.propensity.a, "b": dataset.propensity.b},
        results=tuple(result for result, _ in scores.results),
        training_seconds=sum(run.seconds for run in runs),
        settings={"mix": scores.as_settings()},
        hardware=runs[0].facts.get("hardware", {}),
        precision=precision,
        held_out_rows=len(runs[0].slices.held_out),
        rows=rows_of_chosen(scores.results),
    )


def _said(scores: MixedScores, out: Path) -> Iterator[str]:
    """What was chosen, what it costs, and the figures beside those of each run by itself."""
    choices = scores.choices
    weights = ", ".join(
        f"{cost.run} {weight:g} (alone {alone:.2f})"
        for cost, weight, alone in zip(scores.costs, choices.weights, scores.alone, strict=True)
    )
    yield (
        f"chosen on held-out rows: {weights}; normalization {choices.normalization};"
        f" mean of the metrics {choices.held_out:.2f}"
    )
    yield (
        f"a query costs {scores.encodings} encodings and"
        f" {scores.processor_milliseconds:.2f} ms of processor time, in batches, every key scanned"
    )
    for cost in scores.costs:
        yield (
            f"  {cost.run}: encode {cost.encode:.2f} ms, search {cost.search:.2f} ms,"
            f" rank {cost.rank:.2f} ms"
        )
    for result, _ in scores.results:
        yield f"{out}: {result.method}: {figures(result.metrics)}"
