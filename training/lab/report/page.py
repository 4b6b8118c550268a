"""The report's HTML page: a section for each data set and stream.

The main tables of a data set are also written as Markdown, for training/lab/measured/README.md.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from io import BytesIO
from unicodedata import category

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from training.evaluation.answers import TOP
from training.evaluation.examples import ExampleQuery, Examples, ShownAnswer
from training.lab.replay import ReplayResult
from training.lab.report import tables
from training.lab.report.orderings import orderings
from training.lab.report.runs import Run
from training.lab.report.tables import (
    Part,
    Table,
    bucket_table,
    devices,
    run_table,
    seed_lines,
    seed_table,
)

LONGEST_TEXT = 240  # characters of a query or keyword
COLORS = ("#0072b2", "#c8500a", "#00835f", "#a8447f", "#5b4bb5", "#8a6a00", "#555f6b")
MARKERS = "os^DvPX*"  # with 7 colors, 56 runs look different
LONGEST_NAME = 40  # characters that fit into a legend

WORDS = {
    "P@1": "Of a hundred queries, how many have a right keyword in first place.",
    "P@3, P@5": "Of a hundred answers in the first three (or five) places, how many are right. A"
    " query with a single right keyword reaches 33 (or 20) at most.",
    "R@10, R@100": "Of a hundred keywords that are right for a query, how many are among its first"
    " ten (or hundred) answers, as the mean over all queries.",
    "nDCG@5": "How near the first five places come to the best order, 100 being the best: a right"
    " keyword counts less the lower it stands.",
    "PSP@1, PSP@5": "The share of right answers in the first place (or the first five), where a"
    " keyword counts more the fewer training queries it has; 100 is the most that can be reached.",
    "coverage@5": "Of a hundred keywords that are right for any of the queries, how many are found"
    " at least once among the first five answers to a query they are right for.",
    "F1@5": "For each keyword, how well the queries that have it among their first five answers"
    " agree with those it is right for, 100 being full agreement; then the mean over keywords.",
    "λ, lambda": "How much the training queries that are near a query weigh in its answer, against"
    " the texts of the keywords: 0 is the texts alone, 1 the training queries alone.",
    "b": "How many of the nearest training queries and keywords vote for an answer.",
}


SIDE_BY_SIDE = """\
{rows:,} test rows. Lambda (memorization), b (depth) and tau (temperature) are chosen on {held_out}
held-out training rows. "Labels alone" is the same encoder without the memory (lambda 0). Peers have
no lambda. The best figure of each column is bold. Trained on {devices}.
"""

ORDERINGS = """\
Whether the paper's orderings hold here, counted over all pairs of figures that the claim compares:
"""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A titled section of the page."""

    title: str
    parts: Sequence[Part]


def section_of(runs: Sequence[Run]) -> Section:
    """Build the section of one data set's runs; parts without content are left out."""
    parts = [*_facts(runs), *_measured(runs)]
    if len(runs) > 1:
        parts.append(
            Part(
                title="Frequent and rare keywords together: P@1 against PSP@5",
                words="PSP counts rare keywords more: what is better for frequent ones alone stands"
                " further right, but not higher.",
                picture=plane(runs),
            )
        )
    parts += [judged(run.name, run.examples) for run in runs if run.examples is not None]
    shown = [part for part in parts if part.table is None or part.table.rows]
    return Section(title=runs[0].results.dataset, parts=shown)


def _facts(runs: Sequence[Run]) -> Iterator[Part]:
    """Describe the test rows, how each run's settings were chosen, and its hardware."""
    constants, chosen = runs[0].results.propensity, runs[0].chosen.metrics
    unlabeled = int(chosen.get("rows without labels", 0))
    more = f" ({unlabeled:,} more have no label that counts)" if unlabeled else ""
    rows = [
        [
            run.name,
            run.results.system,
            choice(run),
            "" if run.results.training_seconds is None else device(run),
        ]
        for run in runs
    ]
    words = (
        f"{len(runs[0].rows):,} test rows{more}, the same for every system. Propensity constants:"
        f" A = {constants.get('a')}, B = {constants.get('b')}. No choice was made on test rows."
    )
    if len({trained_on for *_, trained_on in rows if trained_on}) > 1:
        words += " Training times from unlike hardware do not compare."
    headings = ("run", "system", "settings", "trained on")
    table = Table(headings=headings, rows=rows, texts=4)
    yield Part(title="What was measured", words=words, table=table)


def _measured(runs: Sequence[Run]) -> Iterator[Part]:
    """The tables of figures."""
    checked = [[one.claim, one.source, one.verdict] for one in orderings(runs)]
    by_memorization = {run.name: run.by_memorization for run in runs}
    by_depth = {run.name: run.by_depth for run in runs}
    contents = (
        (
            "Metrics",
            "The best of each column is bold, and ● marks the prediction that held-out rows chose."
            " Each run of ours stands here as chosen and, at λ 0, with its label keys alone.",
            tables.metrics(runs),
        ),
        (
            "Several seeds",
            "Mean and standard deviation; a smaller difference may be chance.",
            seed_table(runs),
        ),
        (
            "Instances against labels: λ",
            "0 is labels alone, 1 is instances alone.",
            tables.sweep("λ", by_memorization),
        ),
        (
            "How many keys are retrieved: b",
            "Measured at each run's own λ.",
            tables.sweep("b", by_depth),
        ),
        (
            "Frequent and rare labels",
            "Macro F1@5 of the labels with more than 1,000 training rows (head), 101 to 1,000"
            " (torso), 11 to 100 (tail), 1 to 10 (xtail) and none (unseen).",
            tables.segments(runs),
        ),
        (
            "One search or two",
            "The same vectors, keys retrieved from instances and labels apart or together.",
            tables.predictions(runs),
        ),
        (
            "Chance or not",
            "How far the best run by P@1 is ahead, and the p-value of a two-sided paired t-test"
            " over the same test rows, not corrected for the number of tests.",
            tables.comparisons(runs),
        ),
        (
            "The RAE-XMC paper's orderings, checked here",
            "Counted over all pairs of figures that the claim compares.",
            Table(headings=("claim", "there", "here"), rows=checked, texts=3),
        ),
    )
    yield from (Part(title=title, words=words, table=table) for title, words, table in contents)


def markdown(dataset: str, runs: Sequence[Run]) -> Iterator[str]:
    """Yield a data set's section of training/lab/measured/README.md."""
    held_out = sorted({run.results.held_out_rows for run in runs} - {0})
    yield f"## {dataset}\n"
    yield SIDE_BY_SIDE.format(
        rows=len(runs[0].rows),
        held_out=" or ".join(f"{count:,}" for count in held_out) or "no",
        devices=devices(runs),
    )
    yield from run_table(runs).markdown()
    yield from seed_lines(runs)
    checked = orderings(runs)
    if checked:
        yield ORDERINGS
        for ordering in checked:
            claim = ordering.claim.replace("λ", "lambda")
            yield f"- {ordering.source}: {claim}: {ordering.verdict}"
        yield ""


def choice(run: Run) -> str:
    """Say how lambda, b and temperature of a run were chosen."""
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


def device(run: Run) -> str:
    """Name the processor that trained a run, and the number of processes if there were several."""
    name = str(run.results.hardware.get("device") or "hardware that is not named")
    processes = run.results.hardware.get("processes")
    return f"{processes} times {name}" if isinstance(processes, int) and processes > 1 else name


def judged(name: str, examples: Examples) -> Part:
    """Test queries with their answers, next to the answers of the untrained memory."""
    against = examples.against
    words = (
        f"{len(examples.queries)} test queries drawn by seed {examples.seed}, with what was"
        f" expected and the first {TOP} answers."
    )
    headings: tuple[str, ...] = ("query", "expected", "came")
    if against is None:
        words += " The untrained memory was not measured."
    else:
        headings += ("came from the untrained memory", "against it")
        words += (
            f" Of {against.rows:,} test queries, {against.won:,} won, {against.lost:,} lost,"
            f" {against.same:,} the same, against the untrained memory of {against.encoder}"
            f" (λ {against.memorization:g}, b {against.depth}, temperature {against.tau:g}). A"
            " query is won if more of its answers are right, or as many that stand higher."
        )
    rows = [_judged_cells(query) for query in examples.queries]
    table = Table(headings=headings, rows=rows, texts=len(headings))
    return Part(title=f"Queries to judge by: {name}", words=words, table=table)


def _judged_cells(query: ExampleQuery) -> list[str]:
    more = [f"and {query.more:,} more"] if query.more else []
    expected = "\n".join([*map(shown_text, query.expected), *more])
    cells = [shown_text(query.query), expected, _answer_lines(query.answers)]
    if query.verdict is not None:
        cells += [_answer_lines(query.untrained or ()), query.verdict]
    return cells


def _answer_lines(answers: Sequence[ShownAnswer]) -> str:
    lines = [
        f"{shown_text(answer.text)} {answer.score:.3f}{' ✓ right' if answer.right else ''}"
        for answer in answers
    ]
    return "\n".join(lines) or "nothing"


def plane(runs: Sequence[Run]) -> bytes:
    """Draw PSP@5 against P@1, with a point for each run at its chosen settings.

    A system that gains on frequent labels at the cost of rare ones moves right and down. Equal runs
    give equal bytes.
    """
    figure = Figure(figsize=(6.4, 3.8 + 0.11 * len(runs)), dpi=130, layout="constrained")
    axes, points = figure.add_subplot(), []
    for place, run in enumerate(runs):
        marker, color = MARKERS[place % len(MARKERS)], COLORS[place % len(COLORS)]
        metrics = run.chosen.metrics
        points += axes.plot([metrics["P@1"]], [metrics["PSP@5"]], marker, color=color)
    axes.set(xlabel="P@1, percent", ylabel="PSP@5, percent", title="P@1 and PSP@5")
    axes.grid(alpha=0.3)
    names = [run.name[:LONGEST_NAME] for run in runs]
    legend = figure.legend(points, names, loc="outside lower center", ncols=2, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a name may contain dollar signs
    picture = BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


def stream_section(streams: Sequence[ReplayResult]) -> Section:
    """Recall of novel labels by age and, if clicks were learned, by clicks."""
    parts = []
    for stream in streams:
        posted = "one-shot" if stream.one_shot else "zero-shot"
        title = f"{stream.dataset}, {posted}{', clicks learned' if stream.learn else ''}"
        kinds = [("queries since it was posted", stream.by_age)]
        kinds += [("clicks learned for it", stream.by_clicks)] if stream.learn else []
        for what, buckets in kinds:
            words = f"Recall of novel labels by {what}."
            parts.append(Part(title=title, words=words, table=bucket_table(what, buckets)))
    return Section(title="Novel labels in traffic", parts=parts)


def render(sections: Sequence[Section]) -> str:
    """Return the page as HTML; every text from a results file is escaped."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["base64"] = lambda picture: b64encode(picture).decode("ascii")
    folder = resources.files("training.lab.report")
    template = environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(sections=sections, words=WORDS)


def shown_text(text: str) -> str:
    """Cut a text of the data, and put replacement characters where HTML allows no character.

    HTML allows neither control characters nor half of a surrogate pair.
    """
    cut = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
    return "".join("\ufffd" if is_forbidden(character) else character for character in cut)


def is_forbidden(character: str) -> bool:
    """Check for a control character or half of a surrogate pair, which HTML does not allow."""
    return category(character) in ("Cc", "Cs") and character not in "\t\n"
