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
from training.checkpoints.choices import Choices
from training.checkpoints.label_keys import LABEL_KEYS
from training.checkpoints.run_json import BEST, metadata_of_run, read_run_on
from training.commands.options import ScoringPrecision
from training.commands.scoring.figures import SHOWN, figures
from training.commands.scoring.target import ItemsOption, target_of
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, require_test_rows
from training.datasets.metadata_texts import with_metadata
from training.datasets.pair_weights import Relevance
from training.evaluation import results
from training.evaluation.answers import Answers, drawn_rows
from training.evaluation.evaluation import Items
from training.evaluation.examples import Examples, examples_of, write_examples
from training.evaluation.results import Results, rows_of_chosen
from training.evaluation.run_facts import facts_of_run
from training.evaluation.weighted_metrics import ALL_ALIKE, SHOWN_WEIGHTED, weights_differ
from training.models.precision import Precision
from training.progress import Report, say, stages

if TYPE_CHECKING:
    from training.experiments.sweeps import EncoderScores

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
    items: ItemsOption = "predicted",
) -> None:
    """Measure a run's best checkpoint, or any encoder, on the test rows of a data set.

    Every key is scanned, in fp16 as served. The result of the chosen lambda and b, and of `fit`'s
    second ranking, is marked; all others are sweeps. Fifty queries are written as examples.json.

    Parameters
    ----------
    data
        The data set's folder.
    run
        A run's folder; the results are written into it.
    encoder
        In place of a run: an encoder as `export bundle` takes it.
    out
        The folder for results of `--encoder`, `--head-share` or `--items linked`.
    untrained
        Measure the encoder that the run began with, too, if the run has not kept its answers.
    relevance
        How the weights of the pairs count in the votes. Default: as `fit` chose, otherwise given.
    weighted
        Add P@k, R@k and nDCG@k in which a more relevant label of a row counts more.
    head_share
        For a run of UniDEC: the share of the dual encoder's head in the vectors, in place of the
        chosen one. 1 is this head alone, 0 the classifiers alone. It needs `--out`.
    """
    target = target_of(run, encoder, out, untrained=untrained, head_share=head_share, items=items)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    facts, dataset = _as_of_run(run, dataset)
    console = open_console()
    options = _Options(
        settings=facts.get("settings", {}),
        untrained=untrained,
        precision=precision,
        relevance=relevance,
        weighted=weighted,
        head_share=head_share,
        items=items,
    )
    scores, examples = _scores(run, encoder, dataset, options, console)
    name = name or f"{facts.get('recipe') or encoder}{options.share_in_name}{options.items_in_name}"
    measured = _results(name, dataset, scores, options, of_run=_of_run(run, facts, options))
    results.write(measured, target)
    write_examples(examples, target)
    said = (*_against_untrained(examples, run), *_chosen(measured, target))
    console.print(*said, *_all_alike(dataset, options), sep="\n", soft_wrap=True)


def _as_of_run(run: Path | None, dataset: Dataset) -> tuple[dict[str, Any], Dataset]:
    """The run's facts, and the data with the texts that the run reads."""
    if run is None:
        return {}, dataset
    facts = read_run_on(run, dataset.name)
    return facts, with_metadata(dataset, metadata_of_run(facts, run))


def _all_alike(dataset: Dataset, options: _Options) -> Iterator[str]:
    if options.weighted and not weights_differ(dataset.test.labels_of):
        yield ALL_ALIKE


@dataclass(frozen=True, kw_only=True)
class _Options:
    """How an encoder is scored; `settings` are the run's, empty without a run."""

    settings: dict[str, Any]
    untrained: bool
    precision: Precision
    relevance: Relevance | None
    weighted: bool
    head_share: float | None
    items: Items

    @property
    def seed(self) -> int:
        """Draws the queries to judge by."""
        return int(self.settings.get("seed", 0))

    @property
    def share_in_name(self) -> str:
        """What the name in the report adds where the share of the heads is replaced."""
        return "" if self.head_share is None else f", head share {self.head_share:g}"

    @property
    def items_in_name(self) -> str:
        """What the name in the report adds where the items are not the predicted ones."""
        return "" if self.items == "predicted" else f", {self.items} items"

    @property
    def as_trained(self) -> bool:
        """Whether the run is measured as its bundle would answer."""
        overruled = (self.relevance, self.head_share)
        return self.items == "predicted" and all(value is None for value in overruled)

    @property
    def base(self) -> str | None:
        """The encoder that the run began with, where its answers are to be measured, too."""
        return self.settings["encoder"]["name"] if self.untrained else None


def _scores(
    run: Path | None, encoder: str | None, dataset: Dataset, options: _Options, console: Console
) -> tuple[EncoderScores, Examples]:
    """Encode, print the choices, then rank; each stage shows its share and the time left."""
    say(f"opening the encoder {encoder or run}")
    try:
        from training.experiments.sweeps import EncoderScores, open_scoring
        from training.reranking.scored import with_second_ranking
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
        scoring = replace(scoring.attending(options.items), weighted=options.weighted)
        console.print(_described(scoring.choices, folder, options), soft_wrap=True)
        measured = list(scoring.results())
        if folder is not None and options.as_trained:
            measured = with_second_ranking(measured, scoring, folder)
        scores = EncoderScores(
            choices=scoring.choices, results=measured, held_out_rows=scoring.held_out_rows
        )
        untrained = _untrained(run, dataset, options, report)
        rows = drawn_rows(dataset.test, seed=options.seed) if untrained is None else untrained.rows
        answers = scoring.answers(rows, encoder=str(folder or encoder))
        return scores, examples_of(answers, untrained, dataset, seed=options.seed)


def _untrained(
    run: Path | None, dataset: Dataset, options: _Options, report: Report
) -> Answers | None:
    """What the memory of the encoder answers with which a run began, if that is known."""
    from training.experiments.untrained import answers_beside

    if run is None:
        return None
    return answers_beside(
        run,
        dataset,
        options.base,
        seed=options.seed,
        precision=options.precision,
        report=report,
    )


def _of_run(run: Path | None, facts: dict[str, Any], options: _Options) -> dict[str, Any]:
    """The fields of `Results` that only a run has, with the share that replaces its own."""
    if run is None:
        return {}
    of_run = facts_of_run(run, facts)
    if options.head_share is not None:
        of_run["settings"] = {**of_run["settings"], "head_share": options.head_share}
    if options.items != "predicted":
        of_run["settings"] = {**of_run["settings"], "items": options.items}
    return of_run


def _results(
    name: str,
    dataset: Dataset,
    scores: EncoderScores,
    options: _Options,
    *,
    of_run: dict[str, Any],
) -> Results:
    return Results(
        name=name,
        system=scores.choices.system,
        dataset=dataset.name,
        propensity={"a": dataset.propensity.a, "b": dataset.propensity.b},
        results=tuple(result for result, _ in scores.results),
        rows=rows_of_chosen(scores.results),
        precision=options.precision,
        **{"held_out_rows": scores.held_out_rows, **of_run},
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
            shown = figures(result.metrics, names)
            yield f"{target}: {result.method}, lambda {result.memorization}: {shown}"


def _described(choices: Choices, folder: Path | None, options: _Options) -> str:
    relevance = "" if choices.relevance is None else f"; votes with relevance {choices.relevance}"
    note = ""
    if options.head_share is not None and folder and not (folder / LABEL_KEYS).is_file():
        note = f"\n{NO_CLASSIFIERS}"
    return (
        f"chosen on held-out rows: tau {choices.tau:g}, lambda {choices.memorization:g},"
        f" b {choices.depth}{relevance}{note}"
    )
