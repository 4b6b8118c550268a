"""`python -m training score`: an encoder's metrics on the test rows, by every way of prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from service.command_line import open_console
from service.core.errors import MissingExtra
from service.core.files.atomic import refuse_unwritable
from training.checkpoints.choices import Choices
from training.checkpoints.label_keys import LABEL_KEYS
from training.checkpoints.run_json import BEST, read_run_on
from training.commands.options import ScoringPrecision
from training.commands.score_target import target_of
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, require_test_rows
from training.datasets.pair_weights import Relevance
from training.evaluation import results
from training.evaluation.answers import drawn_rows
from training.evaluation.examples import Examples, examples_of, write_examples
from training.evaluation.results import Results, rows_of_chosen
from training.evaluation.run_facts import facts_of_run
from training.evaluation.weighted_metrics import ALL_ALIKE, SHOWN_WEIGHTED, weights_differ
from training.models.encoder_location import find_encoder
from training.models.precision import Precision
from training.progress import say, stages

if TYPE_CHECKING:
    from training.experiments.sweeps import EncoderScores

SHOWN = ("P@1", "P@5", "R@100", "PSP@5")
NO_CLASSIFIERS = (
    "the run kept the labels' texts as label keys, because its classifiers were no better on"
    " held-out rows: the classifiers' head is compared with itself over the labels' texts"
)


def score(
    *,
    data: Path,
    run: Path | None = None,
    encoder: str | None = None,
    out: Path | None = None,
    precision: ScoringPrecision = "fp32",
    name: Annotated[str | None, Parameter(help="The name in the report.")] = None,
    untrained: Annotated[bool, Parameter(negative=())] = False,
    relevance: Relevance | None = None,
    weighted: Annotated[bool, Parameter(negative=())] = False,
    head_share: float | None = None,
) -> None:
    """Measure a run's best checkpoint, or any encoder, on the test rows of a data set.

    Every key is scanned, in fp16 as it is served. The result with the lambda and b that were chosen
    on held-out rows is marked as chosen; all others are sweeps. Writes results.json, rows.npz, and
    examples.json: fifty queries with their answers, for the report.

    Parameters
    ----------
    data
        The data set's folder.
    run
        A run's folder; the results are written into it.
    encoder
        In place of a run: an encoder as `export bundle` takes it.
    out
        The folder for the results of `--encoder` or of `--head-share`.
    untrained
        Measure the encoder that the run began with, too, if the run has not kept its answers.
    relevance
        How the weights of the data's pairs count in the votes. Default: as `fit` chose for the run,
        otherwise given, as the data have them.
    weighted
        Add P@k, R@k and nDCG@k in which a more relevant label of a row counts more.
    head_share
        For a run with UniDEC's two heads: the share of the dual encoder's head in the vectors, in
        place of the one that was chosen. 1 is this head alone, 0 the head of the classifiers alone.
        Goes with `--out`, so that the run's own results stay. Temperature, lambda and b stay, too.
    """
    target = target_of(run, encoder, out, untrained=untrained, head_share=head_share)
    refuse_unwritable(target)
    if encoder is not None:
        find_encoder(encoder)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    facts = read_run_on(run, dataset.name) if run is not None else {}
    console = open_console()
    seed = facts.get("settings", {}).get("seed", 0)
    base = facts["settings"]["encoder"]["name"] if untrained else None
    options = _Options(
        base=base,
        seed=seed,
        precision=precision,
        relevance=relevance,
        weighted=weighted,
        head_share=head_share,
    )
    scores, examples = _scores(run, encoder, dataset, options, console)
    of_run = {"held_out_rows": scores.held_out_rows} if run is None else facts_of_run(run, facts)
    if head_share is not None:
        of_run["settings"] = {**of_run["settings"], "head_share": head_share}
    name = name or _name(facts.get("recipe") or str(encoder), head_share)
    measured = _results(name, dataset, scores, precision=precision, of_run=of_run)
    results.write(measured, target)
    write_examples(examples, target)
    for line in (*_against_untrained(examples, run), *_chosen(measured, target)):
        console.print(line, soft_wrap=True)
    if weighted and not weights_differ(dataset.test.labels_of):
        console.print(ALL_ALIKE, soft_wrap=True)


def _name(recipe: str, head_share: float | None) -> str:
    return recipe if head_share is None else f"{recipe}, head share {head_share:g}"


@dataclass(frozen=True, kw_only=True)
class _Options:
    """How an encoder is scored.

    `base` is the encoder that the run began with, where its answers are to be measured, too.
    """

    base: str | None
    seed: int  # draws the queries to judge by
    precision: Precision
    relevance: Relevance | None
    weighted: bool
    head_share: float | None


def _scores(
    run: Path | None, encoder: str | None, dataset: Dataset, options: _Options, console: Console
) -> tuple[EncoderScores, Examples]:
    """Encode, print the choices, then rank; each stage shows its share and the time left."""
    say(f"opening the encoder {encoder or run}")
    try:
        from training.experiments.sweeps import EncoderScores, open_scoring
        from training.experiments.untrained import answers_beside
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    folder = run / BEST if run is not None else None
    with stages(console) as report:
        scoring = open_scoring(
            str(folder or encoder),
            dataset,
            folder=folder,
            precision=options.precision,
            relevance=options.relevance,
            head_share=options.head_share,
            report=report,
        )
        scoring = replace(scoring, weighted=options.weighted)
        console.print(_described(scoring.choices), soft_wrap=True)
        if options.head_share is not None and folder and not (folder / LABEL_KEYS).is_file():
            console.print(NO_CLASSIFIERS, soft_wrap=True)
        scores = EncoderScores(
            choices=scoring.choices,
            results=list(scoring.results()),
            held_out_rows=scoring.held_out_rows,
        )
        untrained = None
        if run is not None:
            untrained = answers_beside(
                run,
                dataset,
                options.base,
                seed=options.seed,
                precision=options.precision,
                report=report,
            )
        rows = drawn_rows(dataset.test, seed=options.seed) if untrained is None else untrained.rows
        answers = scoring.answers(rows, encoder=str(folder or encoder))
        return scores, examples_of(answers, untrained, dataset, seed=options.seed)


def _results(
    name: str,
    dataset: Dataset,
    scores: EncoderScores,
    *,
    precision: Precision,
    of_run: dict[str, Any],
) -> Results:
    return Results(
        name=name,
        system=scores.choices.system,
        dataset=dataset.name,
        propensity={"a": dataset.propensity.a, "b": dataset.propensity.b},
        results=tuple(result for result, _ in scores.results),
        rows=rows_of_chosen(scores.results),
        precision=precision,
        **of_run,
    )


def _against_untrained(examples: Examples, run: Path | None) -> Iterator[str]:
    """How many queries were won and lost, or how to find out."""
    if examples.against is not None:
        against = examples.against
        yield (
            f"against the untrained memory of {against.encoder}: {against.won:,} of"
            f" {against.rows:,} queries won, {against.lost:,} lost, {against.same:,} the same"
        )
    elif run is not None:
        yield (
            f"{run} has no answers of the untrained memory to these data:"
            " with --untrained they are measured"
        )


def _chosen(measured: Results, target: Path) -> Iterator[str]:
    """The figures of the chosen way."""
    for result in measured.results:
        if result.chosen:
            names = (*SHOWN, *(name for name in SHOWN_WEIGHTED if name in result.metrics))
            shown = ", ".join(f"{name} {result.metrics[name]:.2f}" for name in names)
            yield f"{target}: {result.method}, lambda {result.memorization}: {shown}"


def _described(choices: Choices) -> str:
    relevance = "" if choices.relevance is None else f"; votes with relevance {choices.relevance}"
    return (
        f"chosen on held-out rows: tau {choices.tau:g}, lambda {choices.memorization:g},"
        f" b {choices.depth}{relevance}"
    )
