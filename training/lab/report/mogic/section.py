"""The section of training/lab/measured/README.md with the counterparts of MOGIC's tables.

A function per table yields its rows from measured runs, none if no run measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from training.evaluation.results import PER_ROW
from training.lab.comparisons import comparison as comparisons
from training.lab.report.mogic.relations import (
    Disciple,
    Family,
    families,
    oracles,
    reads_metadata_of,
    same_recipe,
)
from training.lab.report.robustness_tables import robustness_parts
from training.lab.report.runs import Run
from training.lab.report.seeds import difference, labels_alone, seed_lines, seeded, with_memory
from training.lab.report.significance import p_value, paired_p
from training.lab.report.tables import Table, devices, percent, run_table
from training.lab.robustness import FILE, Robustness

METRICS = ("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5")  # the paper's metrics, in its order
FIGURES = (*map(with_memory, METRICS), labels_alone)  # the columns of all tables
Row = list[str]

# Table 5's row -> whether own loss, alignment and matching have a weight above 0
FULL, ALONE = "Disciple + Alignment + Matching", "Disciple"
LOSSES = {
    FULL: (True, True, True),
    "Disciple + Alignment": (True, True, False),
    "Disciple + Matching": (True, False, True),
    ALONE: (True, False, False),
    "Alignment + Matching": (False, True, True),
}
# The texts to which the oracle's metadata are appended -> Table 10's setting and its words
SETTINGS = {
    "both": ("1", "MOGIC"),
    "none": ("2", "the oracle reads no metadata"),
    "queries": ("", "the oracle reads those of queries alone"),
    "labels": ("", "the oracle reads those of labels alone"),
}
LINKED = ("3", "the disciple trains on true metadata")


def oracle_rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Table 4's right half: each oracle, and the texts that it reads with metadata."""
    read = {"both": "queries and labels"}
    for run in oracles(runs):
        side = reads_metadata_of(run)
        yield [run.name, run.results.system, read.get(side, side), *figures(run)]


def guided_rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Tables 7 and 13: each disciple alone and guided by an oracle with all metadata; the gain."""
    for alone, run in _as_in_table_13(runs):
        system = run.results.system
        yield [f"MOGIC ({system})", run.name, *figures(run)]
        yield [system, alone.name, *figures(alone)]
        yield ["gain", "", *gains(run, alone)]


def seeded_rows(runs: Sequence[Run]) -> Iterator[Row]:
    """The gain by guidance over several seeds, for the disciples of Tables 7 and 13."""
    by_name = {one.run.name: one for one in seeded(runs)}
    for unguided, run in _as_in_table_13(runs):
        alone, guided = by_name.get(unguided.name), by_name.get(run.name)
        if alone is not None and guided is not None:
            shared = len(guided.by_seed.keys() & alone.by_seed.keys())
            spreads = [difference(guided, alone, figure) for figure in FIGURES]
            yield [run.results.system, run.name, str(shared), *spreads]


def loss_rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Table 5: both guidance losses or one of them, with and without the disciple's own loss."""
    for alone, group in _groups(runs):
        by_losses = {_counted(disciple): disciple.run for disciple in group}
        ablated = {name: by_losses[one] for name, one in LOSSES.items() if one in by_losses}
        if FULL not in ablated or len(ablated) < 2:
            continue
        if alone is not None:
            ablated[ALONE] = alone
        for name in (name for name in LOSSES if name in ablated):
            run = ablated[name]
            texts = [run.results.system, name, run.name]
            yield [*texts, *figures(run), _against(run, ablated[FULL])]


def weight_rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Runs with weights alpha and beta other than 0 and the paper's values."""
    for alone, group in _groups(runs):
        swept = [one for one in group if one.differs_in("alpha", "beta")]
        if all(_counted(one) is not None for one in swept):
            continue
        if alone is not None:
            yield [alone.results.system, "", "", alone.name, *figures(alone), ""]
        for one in sorted(swept, key=lambda one: (one.guidance.alpha, one.guidance.beta)):
            weights = (f"{one.guidance.alpha:g}", f"{one.guidance.beta:g}")
            against = "" if alone is None else gain(one.run, alone)
            system, name = one.run.results.system, one.run.name
            yield [system, *weights, name, *figures(one.run), against]


def component_rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Table 10: what the oracle reads, and what the disciple trains on."""
    found = families(runs)
    for family in found:
        if family.first.setting("system", "metadata") == "linked":
            continue
        lines = list(_components(family, found))
        if len({(number, words) for number, words, _ in lines}) < 2:
            continue
        first = lines[0][2].run
        for number, words, disciple in lines:
            run, oracle = disciple.run, disciple.oracle
            texts = [run.results.system, number, f"{words}; guided by {oracle.name}", run.name]
            yield [*texts, *figures(run), _against(run, first)]


def projection_rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Table 14: a learned projection of the oracle's vectors against their principal components."""
    for _, group in _groups(runs):
        by_kind = {
            one.guidance.projection: one.run for one in group if one.differs_in("projection")
        }
        if len(by_kind) < 2:
            continue
        for kind, run in sorted(by_kind.items(), reverse=True):  # pca first
            name = "main directions" if kind == "pca" else kind
            texts = [run.results.system, group[0].oracle.name, name, run.name]
            yield [*texts, *figures(run), _against(run, by_kind["pca"])]


def figures(run: Run) -> Row:
    """Format the metrics at the chosen settings, and P@1 of the labels' keys alone."""
    return [percent(figure(run)) for figure in FIGURES]


def gains(run: Run, other: Run) -> Row:
    """Format the gains of a run over another one, for each figure of `figures`."""
    ours, theirs = labels_alone(run), labels_alone(other)
    alone = "" if ours is None or theirs is None else f"{ours - theirs:+.2f}"
    return [*(gain(run, other, metric) for metric in METRICS), alone]


def gain(run: Run, other: Run, metric: str = "P@1") -> str:
    """Format a difference with the p-value of the paired t-test: "+0.43 (p 0.02)"."""
    points = run.chosen.metrics[metric] - other.chosen.metrics[metric]
    if metric not in PER_ROW:
        return f"{points:+.2f}"
    column = PER_ROW.index(metric)
    p = paired_p(run.rows[:, column], other.rows[:, column])
    return f"{points:+.2f} (p {p_value(p)})"


def _as_in_table_13(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Yield pairs of an unguided run and the same recipe guided by an oracle with all metadata."""
    for family in families(runs):
        for one in family.disciples:
            of_paper = one.as_in_the_paper and reads_metadata_of(one.oracle) == "both"
            if family.alone is not None and of_paper:
                yield family.alone, one.run


def _groups(runs: Sequence[Run]) -> Iterator[tuple[Run | None, list[Disciple]]]:
    """Yield the disciples of each family and oracle, with the family's unguided run."""
    for family in families(runs):
        yield from ((family.alone, group) for group in family.by_oracle())


def _counted(disciple: Disciple) -> tuple[bool, bool, bool] | None:
    """Tell which losses are active; None if a weight is neither 0 nor the paper's."""
    guidance = disciple.guidance
    if not disciple.differs_in("own_loss", "alpha", "beta"):
        return None
    known = guidance.own_loss in (0.0, 1.0) and {guidance.alpha, guidance.beta} <= {0.0, 0.1}
    return (guidance.own_loss > 0, guidance.alpha > 0, guidance.beta > 0) if known else None


def _components(family: Family, others: Sequence[Family]) -> Iterator[tuple[str, str, Disciple]]:
    """The disciples guided as in the paper, by what their oracle reads or on true items."""
    usual = [one for one in family.disciples if one.as_in_the_paper]
    for side, (number, words) in SETTINGS.items():
        yield from ((number, words, one) for one in usual if reads_metadata_of(one.oracle) == side)
    for other in others:
        linked = other.first.setting("system", "metadata") == "linked"
        if linked and same_recipe(other.first, family.first, but="metadata"):
            yield from ((*LINKED, one) for one in other.disciples if one.as_in_the_paper)


def _against(run: Run, first: Run) -> str:
    """Format the gain over the first run of the table; "" for the first run itself."""
    return "" if run is first else gain(run, first)


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """A table of runs: `texts` are the headings before the figures, `more` those after them."""

    heading: str
    words: str
    rows: Callable[[Sequence[Run]], Iterator[Row]]
    texts: tuple[str, ...]
    more: tuple[str, ...] = ()


ABLATIONS = (
    Ablation(
        heading="Oracles (Table 4)",
        words="What guides other runs, with the true metadata of the test rows. Larger oracles such"
        " as the paper's Phi-2 and LLaMA-2 (`train oracle-llm`) were measured only where they are"
        " listed.",
        rows=oracle_rows,
        texts=("oracle", "system", "reads metadata of"),
    ),
    Ablation(
        heading="Guided and unguided systems (Tables 7 and 13)",
        words="Each disciple with guidance as in the paper (alpha and beta 0.1), and without.",
        rows=guided_rows,
        texts=("model", "run"),
    ),
    Ablation(
        heading="What guidance gains, over several seeds",
        words="Mean and standard deviation of the difference between guided and unguided, both with"
        " the same seed, which also draws the held-out rows.",
        rows=seeded_rows,
        texts=("system", "run", "seeds"),
    ),
    Ablation(
        heading="The losses (Table 5)",
        words="The disciple's own loss, alignment and matching, each left out.",
        rows=loss_rows,
        texts=("disciple", "losses", "run"),
        more=("P@1 against all three",),
    ),
    Ablation(
        heading="The weights of the losses",
        words="Not in the paper, which takes 0.1 for both.",
        rows=weight_rows,
        texts=("disciple", "alpha", "beta", "run"),
        more=("P@1 against no guidance",),
    ),
    Ablation(
        heading="Components (Table 10)",
        words="Settings 4 and 5, in which the disciple itself reads texts with predicted metadata"
        " appended, have no counterpart: no system here predicts metadata before it encodes a text."
        " What an oracle loses with predicted metadata stands under Table 6.",
        rows=component_rows,
        texts=("disciple", "setting", "what is changed", "run"),
        more=("P@1 against setting 1",),
    ),
    Ablation(
        heading="A learned projection (Table 14)",
        words="The paper projects the vectors of larger oracles. Where an oracle has as many"
        " dimensions as its disciple, main directions are its own vectors.",
        rows=projection_rows,
        texts=("disciple", "oracle", "projection", "run"),
        more=("P@1 against main directions",),
    ),
)


PICTURE = "robustness.png"
WIDTH = 100  # characters of a line

INTRODUCTION = """\
## MOGIC on {dataset}

{rows:,} test rows. An oracle reads texts with their metadata, also those of the test rows; the
systems that it guides in training, its disciples, read none, or look items up (OAK). These commands
make the runs, which share one folder:

{commands}

Figures are those of the memory at the settings that held-out rows chose, with every key scanned.
The paper's disciples rank labels by the labels' keys alone, hence the column of their P@1. p is
that of a paired t-test over the test rows. Trained on {devices}.
"""

NOT_MEASURED = "No run here measures this.\n"
NO_ROBUSTNESS = """\
Not measured here: these tables are made from `{file}` in the folder of a set, which
`keymatch lab robustness --run RUNS... --data DATA --out FOLDER` writes.
"""


def mogic_section(
    dataset: str, runs: Sequence[Run], noise: Mapping[Path, Robustness]
) -> Iterator[str]:
    """Lines of the section of one data set; `noise` maps paths to files of `robustness`.

    Raises `InvalidInput` for a guided run whose oracle is not among the runs.
    """
    yield INTRODUCTION.format(
        dataset=dataset,
        rows=len(runs[0].rows),
        commands="\n".join(_commands(runs)),
        devices=devices(runs),
    )
    for part in ABLATIONS:
        yield f"### {part.heading}\n\n{fill(part.words, WIDTH)}\n"
        rows = list(part.rows(runs))
        if rows:
            headings = (*part.texts, *METRICS, "P@1, labels alone", *part.more)
            yield from Table(headings=headings, rows=rows, texts=len(part.texts)).markdown()
        else:
            yield NOT_MEASURED
    yield from _of_noise({path: one for path, one in noise.items() if one.dataset == dataset})
    yield "### All runs\n"
    yield from run_table(runs).markdown()
    yield from seed_lines(runs)


def _commands(runs: Sequence[Run]) -> Iterator[str]:
    """The commands that reproduce the sets: `compare`, or `train` if no set is a comparison."""
    sets = dict.fromkeys(run.folder.parent.name for run in runs)
    known = [name for name in sets if name in comparisons.names()]
    for name in sorted(known, key=lambda name: len(comparisons.load(name).entries)):
        yield f"    keymatch lab compare {name} --data DATA --out RUNS"
    if not known:
        guided = "--set guidance.oracle=ORACLE"
        yield f"    keymatch lab train RECIPE --data DATA --out RUN {guided}"


def _of_noise(noise: Mapping[Path, Robustness]) -> Iterator[str]:
    """Tables 6, 8 and 9 for each file of `robustness`."""
    yield "### Missing and wrong metadata (Tables 6, 8 and 9)\n"
    if not noise:
        yield NO_ROBUSTNESS.format(file=FILE)
    for path, document in noise.items():
        draws = len(document.seeds)
        random = f", with their standard deviation over {draws} draws" if draws > 1 else ""
        words = (
            "The memory stays as it is; the metadata of the test rows change. Figures of random"
            f" changes are means{random}. Runs that read no metadata of queries lose nothing."
        )
        yield f"{fill(words, WIDTH)}\n"
        if (path.parent / PICTURE).is_file():
            yield f"![P@1 by missing or wrong metadata]({path.parent.name}/{PICTURE})\n"
        for part in robustness_parts(document):
            yield f"**{part.title}.** {part.words}\n" if part.title else f"{part.words}\n"
            assert part.table is not None
            yield from part.table.markdown()
