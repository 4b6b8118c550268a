"""`keymatch score`: measures an encoder on the test rows, with every way of prediction."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from service.command_line import DEFAULT_CACHE, CacheOption, open_console
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.object_store import local_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_unwritable, write_file
from service.core.label_filter import MOST_VALUES, LabelFilter, parse_json
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.prediction.reliability import KEPT
from service.core.processes.ray_cluster import Cluster, joined
from service.core.types import ScoreKind, Spelling
from training.checkpoints.choices import Choices
from training.checkpoints.label_keys import LABEL_KEYS
from training.checkpoints.run_json import BEST, metadata_of_run, read_run_on
from training.commands.options import FLAT, MANY, SHOWN, ScoringPrecision, figures
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, require_test_rows
from training.datasets.metadata_texts import with_metadata
from training.datasets.pair_weights import Relevance
from training.evaluation import posted_labels, results
from training.evaluation.answers import drawn_rows, read_untrained
from training.evaluation.asking import Asking
from training.evaluation.bundle_rows import known_figures, without_seen_rows
from training.evaluation.confidence import ConfidenceRow, measure_confidence
from training.evaluation.evaluation import Evaluation, EvaluationRow, Items, open_evaluation
from training.evaluation.examples import Examples, examples_of, write_examples
from training.evaluation.known_queries import sentence
from training.evaluation.noise import KINDS, NoiseRow, measure_noise
from training.evaluation.posted_labels import measure_posted
from training.evaluation.results import Results, facts_of_run, rows_of_chosen
from training.evaluation.retrieval import Elsewhere, Place
from training.evaluation.weighted_metrics import ALL_ALIKE, SHOWN_WEIGHTED, weights_differ
from training.models.encoder_location import find_encoder
from training.models.precision import Precision
from training.progress import Report, say, stages

if TYPE_CHECKING:
    from training.scoring import Measured, Scoring

_HELP = (
    "For OAK: the metadata items that a test row attends to, those that it is predicted, as when"
    " served, or all that the data link it to. With `--run`, `linked` needs `--out`."
)
ItemsOption = Annotated[Items, Parameter(help=_HELP)]
TABLE = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10", "R@100", "F1@5", "coverage@5")


@dataclass(frozen=True, kw_only=True)
class OfBundle:
    """Options of `score` that apply only to a bundle.

    Attributes
    ----------
    memorization
        For a bundle: one or more values of lambda in 0..1; each is measured. Default: the bundle's.
    depth
        For a bundle: the number of retrieved keys per query (b), 1..2000. Default: the bundle's.
    exact
        For a bundle: scan every key instead of searching the HNSW graph.
    rerank
        For a bundle: whether to rerank the best labels. Default: if the bundle has a reranker.
    spelling
        For a bundle: auto or off, as in a request. Default: the bundle's.
    filter
        For a bundle: score with only the labels whose metadata pass, as JSON, for example
        '{"all": [{"field": "price", "lt": 100}]}', as in POST /predict. Test rows without a
        relevant label among these are left out. Not with --noise.
    noise
        For a bundle: also ask test rows with typos and other noise. Then post labels, and ask for
        each by its code and by its rare words. P@1 is printed for each kind.
    seed
        For a bundle: draws the noise, and the test rows if there are more than 1,000. Default: 0.
    json
        For a bundle: also write the figures, in percent, to this file.
    cluster
        For a bundle, with --json: auto|HOST:PORT: encode and search on a Ray cluster that is
        started on this machine, or on that of a head, of which this machine is a part. All its
        machines must see the bundle and the folder of --json, which keeps finished parts until the
        figures are written.
    """

    memorization: Annotated[tuple[float, ...] | None, MANY] = None
    depth: int | None = None
    exact: bool = False
    rerank: Annotated[bool | None, Parameter(negative="--no-rerank")] = None
    spelling: Spelling | None = None
    filter: str | None = None
    noise: Annotated[bool, Parameter(negative=())] = False
    seed: int | None = None
    json: Path | None = None
    cluster: str | None = None


def _refuse_given(options: Mapping[str, object], message: str) -> None:
    """Raise `InvalidInput` for the first option that is given; `message` has a place for it."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise InvalidInput(message.format(name))


def _target(run: Path | None, encoder: str | None, out: Path | None, options: _Options) -> Path:
    """Return the folder for the results.

    Raises `InvalidData` if it cannot be written, and `InvalidInput` for options that exclude each
    other and for an unknown encoder.
    """
    items, head_share = options.items, options.head_share
    if items != "predicted" and head_share is not None:
        raise InvalidInput(f"--items {items} and --head-share exclude each other")
    if head_share is not None and not 0.0 <= head_share <= 1.0:
        raise InvalidInput(f"--head-share must lie in 0..1, not {head_share:g}")
    if items != "predicted" or head_share is not None:  # kept apart from the run's results
        option = "--head-share" if head_share is not None else "--items linked"
        if run is None or encoder is not None or out is None:
            raise InvalidInput(f"{option} goes with --run and --out")
        if out.resolve() == run.resolve():
            raise InvalidInput("--out must be another folder than --run, whose results stay")
        refuse_unwritable(out)
        return out
    target = run if run is not None else out
    if (run is None) == (encoder is None) or (encoder is None) != (out is None) or target is None:
        raise InvalidInput("give one of --bundle, --run, or --encoder and --out")
    refuse_unwritable(target)
    if encoder is not None:
        find_encoder(encoder)
    return target


NO_CLASSIFIERS = (
    "the run kept the labels' texts as label keys, because its classifiers were no better on"
    " held-out rows: the classifiers' head is compared with itself over the labels' texts"
)


def score(
    *,
    data: Path,
    bundle: str | None = None,
    run: Path | None = None,
    encoder: str | None = None,
    out: Path | None = None,
    precision: ScoringPrecision = "fp32",
    name: Annotated[str | None, Parameter(help="The name in the report.")] = None,
    relevance: Relevance | None = None,
    weighted: Annotated[bool, Parameter(negative=())] = False,
    head_share: float | None = None,
    items: ItemsOption = "predicted",
    of_bundle: Annotated[OfBundle, FLAT] = OfBundle(),
    cache: CacheOption = DEFAULT_CACHE,
) -> None:
    """Measure a bundle, a run's best checkpoint, or any encoder, on the test rows of a data set.

    A bundle is measured with the search, scoring and ranking of the service, and its metrics are
    printed. For a run or an encoder, every key is scanned, in fp16 as served. The result of the
    chosen lambda and b, and of `fit`'s reranker, is marked; all others are sweeps. Writes the
    results into the folder, and fifty queries as examples.json.

    Parameters
    ----------
    data
        The data set's folder.
    bundle
        A bundle's folder or URL; the labels of the data set must be its own.
    run
        A run's folder; the results are written into it.
    encoder
        An encoder as `export bundle` takes it.
    out
        The folder for results of `--encoder`, `--head-share` or `--items linked`.
    relevance
        How the weights of the pairs count in the votes. Default: as `fit` chose, otherwise given.
    weighted
        Add P@k, R@k and nDCG@k in which a more relevant label of a row counts more.
    head_share
        For a run of UniDEC: the share of the dual encoder's head in the vectors, instead of the
        chosen one. 1 is this head alone, 0 the classifiers alone. Needs `--out`.
    cache
        Folder for copies of bundles that URLs name.
    """
    if bundle is not None:
        own: dict[str, object] = {"run": run, "encoder": encoder, "out": out, "name": name}
        own |= {"relevance": relevance, "head-share": head_share}
        _refuse_given(own, "--bundle and --{} exclude each other")
        with joined(_cluster(of_bundle)) as workers:
            _score_bundle(bundle, data, of_bundle, cache, workers, weighted=weighted, items=items)
        return
    _refuse_given(vars(of_bundle), "--{} goes with --bundle")
    options = _Options(
        precision=precision,
        relevance=relevance,
        weighted=weighted,
        head_share=head_share,
        items=items,
    )
    target = _target(run, encoder, out, options)
    dataset, facts = lf_xmc.read(data), {}
    require_test_rows(dataset)
    if run is not None:
        facts = read_run_on(run, dataset.name)
        dataset = with_metadata(dataset, metadata_of_run(facts, run))
        options = replace(options, settings=facts.get("settings", {}))
    console = open_console()
    scoring, results_and_rows, examples = _scores(run, encoder, dataset, options, console)
    measured = Results(
        name=name or f"{facts.get('recipe') or encoder}{options.in_name}",
        system=scoring.choices.system,
        dataset=dataset.name,
        propensity={"a": dataset.propensity.a, "b": dataset.propensity.b},
        results=tuple(result for result, _ in results_and_rows),
        rows=rows_of_chosen(results_and_rows),
        precision=precision,
        **{"held_out_rows": scoring.held_out_rows, **_of_run(run, facts, options)},
    )
    results.write(measured, target)
    write_examples(examples, target)
    said = [*_against_untrained(examples), *_chosen(measured, target)]
    if weighted and not weights_differ(dataset.test.labels_of):
        said.append(ALL_ALIKE)
    console.print(*said, sep="\n", soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class _Options:
    """How an encoder is scored; `settings` are the run's, and empty without a run."""

    precision: Precision
    relevance: Relevance | None
    weighted: bool
    head_share: float | None
    items: Items
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """The seed that draws the example queries."""
        return int(self.settings.get("seed", 0))

    @property
    def in_name(self) -> str:
        """The addition to the name in the report for another share of the heads or other items."""
        share = "" if self.head_share is None else f", head share {self.head_share:g}"
        return share + ("" if self.items == "predicted" else f", {self.items} items")

    @property
    def as_trained(self) -> bool:
        """Whether the run is measured with the settings that its bundle would use."""
        overruled = (self.relevance, self.head_share)
        return self.items == "predicted" and all(value is None for value in overruled)


def _scores(
    run: Path | None, encoder: str | None, dataset: Dataset, options: _Options, console: Console
) -> tuple[Scoring, list[Measured], Examples]:
    """Encode, print the choices, then rank; each stage shows its progress and the time left."""
    say(f"opening the encoder {encoder or run}")
    from training.reranking.measuring import with_reranker
    from training.scoring import open_scoring

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
            measured = with_reranker(measured, scoring, folder)
        untrained = None if run is None else read_untrained(run, dataset)
        rows = drawn_rows(dataset.test, seed=options.seed) if untrained is None else untrained.rows
        answers = scoring.answers(rows, encoder=str(folder or encoder))
        examples = examples_of(answers, untrained, dataset, seed=options.seed)
        return scoring, measured, examples


def _of_run(run: Path | None, facts: dict[str, Any], options: _Options) -> dict[str, Any]:
    """Return the fields of `Results` that only a run has; `options` may override them."""
    if run is None:
        return {}
    of_run = facts_of_run(run, facts)
    if options.head_share is not None:
        of_run["settings"] = {**of_run["settings"], "head_share": options.head_share}
    if options.items != "predicted":
        of_run["settings"] = {**of_run["settings"], "items": options.items}
    return of_run


def _against_untrained(examples: Examples) -> Iterator[str]:
    """Say how many queries the training won and lost, if the run has kept answers from before."""
    if examples.against is not None:
        against = examples.against
        yield (
            f"against the memory of {against.encoder} before this training: {against.won:,} of"
            f" {against.rows:,} queries won, {against.lost:,} lost, {against.same:,} the same"
        )


def _chosen(measured: Results, target: Path) -> Iterator[str]:
    """Yield the figures of the chosen way of prediction."""
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


def _score_bundle(
    bundle: str,
    data: Path,
    of_bundle: OfBundle,
    cache: Path,
    workers: Cluster | None,
    *,
    weighted: bool,
    items: Items,
) -> None:
    json, seed, wanted = of_bundle.json, of_bundle.seed or 0, _filter(of_bundle)
    if json is not None:
        refuse_unwritable(json.parent)
    opened, whole = open_bundle(local_bundle(bundle, cache)), lf_xmc.read(data)
    require_test_rows(whole)
    dataset, seen = without_seen_rows(whole, opened)
    place = Place.of(bundle, cache, opened)
    elsewhere = _elsewhere(place, workers, json)
    chosen, depth = _lambdas_and_depth(opened, of_bundle)
    console, exact = open_console(), of_bundle.exact
    known: dict[str, float] = {}
    with stages(console) as report:
        asked = partial(
            open_evaluation,
            opened,
            depth=depth,
            exact=exact,
            threads=os.cpu_count() or 1,
            report=report,
            rerank=of_bundle.rerank,
            spelling=of_bundle.spelling,
        )
        if wanted is None and items == "predicted":
            known = known_figures(asked, whole, opened, chosen[0])
        if not len(dataset.test):
            console.print(*_only_known(opened, seen, known), sep="\n", soft_wrap=True)
            _write_figures(
                json,
                {
                    "dataset": whole.name,
                    "bundle": opened.manifest.name,
                    "rows in the memory": seen,
                    "rows": [],
                    "known queries": known,
                },
            )
            return
        evaluation = asked(dataset, items=items, wanted=wanted, elsewhere=elsewhere)
        rows = list(replace(evaluation, weighted=weighted).rows(chosen))
        encoder = OnnxEncoder(opened.folder, opened.manifest.encoder)
        asking = _asking(evaluation, encoder, seed=seed)
        confidence = _confidence(asking, report) if items == "predicted" else None
        noise = list(_noise(asking, encoder, report)) if of_bundle.noise else []
    reranked = bool(evaluation.options.candidates)
    console.print(_table(rows, dataset, exact=exact, items=items, reranked=reranked))
    for line in _of_memory(seen, len(dataset.test), known):
        console.print(line, soft_wrap=True)
    document: dict[str, Any] = {
        "dataset": dataset.name,
        "bundle": opened.manifest.name,
        "exact": exact,
        "items": items,
        "reranked": reranked,
        "propensity": {"a": dataset.propensity.a, "b": dataset.propensity.b},
        "rows": [vars(row) for row in rows],
        "rows in the memory": seen,
        "known queries": known,
    }
    if of_bundle.filter is not None:
        passing = len(evaluation.view.labels)
        left_out = len(dataset.test) - len(evaluation.dataset.test)
        console.print(*_filtered_lines(evaluation.view, left_out), sep="\n", soft_wrap=True)
        document["filter"] = orjson.loads(of_bundle.filter)
        document |= {"labels that pass": passing, "rows left out": left_out}
    if weighted and not weights_differ(dataset.test.labels_of):
        console.print(ALL_ALIKE, soft_wrap=True)
    if confidence is not None:
        console.print(_confidence_table(confidence, seed=seed))
        console.print(*_confidence_lines(confidence), sep="\n", soft_wrap=True)
        document |= {"seed": seed, "confidence": asdict(confidence)}
    if noise:
        console.print(_noise_table(noise, seed=seed))
        document |= {"seed": seed, "noise": [vars(row) for row in noise]}
    _write_figures(json, document)
    if elsewhere is not None:
        shutil.rmtree(elsewhere.work, ignore_errors=True)


def _elsewhere(place: Place, workers: Cluster | None, json: Path | None) -> Elsewhere | None:
    """Return the cluster that encodes and searches, if there is one."""
    if workers is None or json is None:
        return None
    work = json.absolute().with_name(f".{json.name}.score")
    return Elsewhere(cluster=workers, work=work, place=place)


def _write_figures(json: Path | None, document: Mapping[str, Any]) -> None:
    if json is not None:
        form = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
        write_file(json, orjson.dumps(document, option=form) + b"\n")


def _of_memory(seen: int, left: int, known: Mapping[str, float]) -> Iterator[str]:
    """Say how many test rows are in the memory, and how known queries are answered."""
    if seen:
        yield (
            f"{seen:,} test rows are in the bundle's memory and say nothing about new queries: the"
            f" figures are of the other {left:,}"
        )
    if known:
        yield sentence(known)


def _only_known(bundle: Bundle, seen: int, known: Mapping[str, float]) -> Iterator[str]:
    """Say what can be said of a bundle whose memory has all test rows."""
    yield (
        f"all {seen:,} test rows are in the bundle's memory, so they cannot measure how it answers"
        " new queries: give a bundle that was made with `export bundle --hold-out-test`"
    )
    metrics = bundle.manifest.metrics
    if "test.P@1" in metrics:
        measured = ", ".join(f"{name} {metrics[f'test.{name}']:.1f}" for name in ("P@1", "P@5"))
        yield f"before they were in the memory, `export bundle` measured on them: {measured}"
    yield from _of_memory(0, 0, known)


def _cluster(of_bundle: OfBundle) -> str | None:
    """Return the address of `--cluster`; raises `InvalidInput` without `--json`."""
    if of_bundle.cluster is not None and of_bundle.json is None:
        raise InvalidInput("--cluster goes with --json, next to which finished parts are kept")
    return of_bundle.cluster


def _lambdas_and_depth(bundle: Bundle, of_bundle: OfBundle) -> tuple[Sequence[float], int]:
    """Return the values of lambda and b to measure; raises `InvalidInput` outside their ranges."""
    defaults = bundle.manifest.predictor
    chosen = of_bundle.memorization or (defaults.memorization,)
    depth = defaults.depth if of_bundle.depth is None else of_bundle.depth
    if not all(0.0 <= value <= 1.0 for value in chosen):
        raise InvalidInput("memorization must lie in 0..1")
    if not 1 <= depth <= 2000:
        raise InvalidInput("depth must lie in 1..2000")
    return chosen, depth


def _filter(of_bundle: OfBundle) -> LabelFilter | None:
    """Return the filter of `--filter`; raises `InvalidInput` for a bad one, and with `--noise`."""
    if of_bundle.filter is None:
        return None
    if of_bundle.noise:  # which posts labels without metadata
        raise InvalidInput("--filter and --noise exclude each other")
    try:
        return parse_json(of_bundle.filter, at="--filter", most=MOST_VALUES)
    except InvalidInput as error:
        raise InvalidInput(f"{error.field} {error}") from error


def _filtered_lines(view: View, left_out: int) -> Iterator[str]:
    """Say which labels and test rows a filter leaves."""
    yield (
        f"{len(view.labels):,} of {view.bundle.labels:,} labels pass the filter; {left_out:,} test"
        " rows without a relevant label among these are left out"
    )
    for warning in view.filter_warnings:
        yield f"note: {warning}"


def _table(
    rows: Sequence[EvaluationRow], dataset: Dataset, *, exact: bool, items: Items, reranked: bool
) -> Table:
    """Return a table with a row per metric and a column per lambda, for a narrow terminal."""
    search = "exact search" if exact else "HNSW"
    given = "" if items == "predicted" else f", {items} items"
    given += ", reranked" if reranked else ""
    table = Table(
        title=f"{dataset.name}, percent of test rows, {search}, depth {rows[0].depth}{given},\n"
        f"propensity A={dataset.propensity.a} B={dataset.propensity.b}",
    )
    table.add_column("lambda")
    for row in rows:
        table.add_column(f"{row.memorization:g}", justify="right")
    for name in (*TABLE, *SHOWN_WEIGHTED):
        if name not in rows[0].metrics:
            continue
        table.add_row(name, *(f"{row.metrics[name]:.2f}" for row in rows))
    return table


def _asking(evaluation: Evaluation, encoder: OnnxEncoder, *, seed: int) -> Asking:
    """Ask the evaluated memory as the service would."""
    return Asking(
        predictor=Predictor.of(evaluation.view.bundle, encoder),
        view=evaluation.view,
        dataset=evaluation.dataset,
        options=evaluation.options,
        seed=seed,
    )


def _confidence(asking: Asking, report: Report) -> ConfidenceRow | None:
    """Measure the confidences of a bundle that has them."""
    kind: ScoreKind = "probability" if asking.options.candidates else "votes"
    if kind not in (asking.view.bundle.manifest.confidence or {}):
        return None
    report("ask for confidences", 0, 1)
    row = measure_confidence(asking)
    report("ask for confidences", 1, 1)
    return row


def _noise(asking: Asking, encoder: OnnxEncoder, report: Report) -> Iterator[NoiseRow]:
    """Measure each kind of noise, then posted labels."""
    kinds = len(KINDS) + len(posted_labels.KINDS)
    measured = chain(measure_noise(asking), measure_posted(asking, encoder))
    for done, row in enumerate(measured, start=1):
        report("ask with noise", done, kinds)
        yield row


def _confidence_table(row: ConfidenceRow, *, seed: int) -> Table:
    found = row.reliability
    table = Table(title=f"Confidences, {found.queries:,} test rows, seed {seed}")
    for name in ("confidence", "keywords", "mean", "relevant"):
        table.add_column(name, justify="right")
    for one in found.bins:
        means = (f"{100 * one.confidence:.1f} %", f"{100 * one.relevant:.1f} %")
        table.add_row(f"from {one.low:.1f}", f"{one.keywords:,}", *means)
    return table


def _confidence_lines(row: ConfidenceRow) -> Iterator[str]:
    """Say how far confidences can be believed, and what a threshold leaves."""
    found = row.reliability
    answered = ", ".join(f"{share:.1f} % at {goal} %" for goal, share in found.answered.items())
    yield (
        f"calibration error {found.error:.1f} points, of first keywords {found.first_error:.1f};"
        f" answered with a precision of first keywords: {answered}"
    )
    yield (
        f"min_confidence {found.threshold:.2f} keeps {KEPT} % of right first keywords, and gives"
        f" {row.nonsense_empty:.1f} % of nonsense no keyword"
    )


def _noise_table(rows: Sequence[NoiseRow], *, seed: int) -> Table:
    table = Table(
        title=f"P@1 in percent of test rows that a kind of noise changes, and of posted labels by"
        f" their code and their rare words, seed {seed}"
    )
    table.add_column("noise")
    for name in ("rows", "clean", "noisy", "share"):
        table.add_column(name, justify="right")
    for row in rows:
        share = f"{100 * row.noisy / row.clean:.0f} %" if row.clean else "-"
        figures = (f"{row.rows:,}", f"{row.clean:.2f}", f"{row.noisy:.2f}", share)
        table.add_row(row.kind, *figures)
    return table
