"""The section of training/lab/measured/README.md with the counterparts of MOGIC's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from training.lab.comparisons import comparison as comparisons
from training.lab.report.mogic import ablations
from training.lab.report.mogic.ablations import METRICS, Row
from training.lab.report.robustness_tables import robustness_parts
from training.lab.report.runs import Run
from training.lab.report.seeds import seed_lines
from training.lab.report.tables import Table, devices, run_table
from training.lab.robustness import FILE, Robustness

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


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """A table of runs: `texts` are the headings before the figures, `more` those after them."""

    heading: str
    words: str
    rows: Callable[[Sequence[Run]], list[Row]]
    texts: tuple[str, ...]
    more: tuple[str, ...] = ()


ABLATIONS = (
    Ablation(
        heading="Oracles (Table 4)",
        words="What guides other runs, with the true metadata of the test rows. Larger oracles such"
        " as the paper's Phi-2 and LLaMA-2 (`train oracle-llm`) were measured only where they are"
        " listed.",
        rows=ablations.oracle_rows,
        texts=("oracle", "system", "reads metadata of"),
    ),
    Ablation(
        heading="Guided and unguided systems (Tables 7 and 13)",
        words="Each disciple with guidance as in the paper (alpha and beta 0.1), and without.",
        rows=ablations.guided_rows,
        texts=("model", "run"),
    ),
    Ablation(
        heading="What guidance gains, over several seeds",
        words="Mean and standard deviation of the difference between guided and unguided, both with"
        " the same seed, which also draws the held-out rows.",
        rows=ablations.seeded_rows,
        texts=("system", "run", "seeds"),
    ),
    Ablation(
        heading="The losses (Table 5)",
        words="The disciple's own loss, alignment and matching, each left out.",
        rows=ablations.loss_rows,
        texts=("disciple", "losses", "run"),
        more=("P@1 against all three",),
    ),
    Ablation(
        heading="The weights of the losses",
        words="Not in the paper, which takes 0.1 for both.",
        rows=ablations.weight_rows,
        texts=("disciple", "alpha", "beta", "run"),
        more=("P@1 against no guidance",),
    ),
    Ablation(
        heading="Components (Table 10)",
        words="Settings 4 and 5, in which the disciple itself reads texts with predicted metadata"
        " appended, have no counterpart: no system here predicts metadata before it encodes a text."
        " What an oracle loses with predicted metadata stands under Table 6.",
        rows=ablations.component_rows,
        texts=("disciple", "setting", "what is changed", "run"),
        more=("P@1 against setting 1",),
    ),
    Ablation(
        heading="A learned projection (Table 14)",
        words="The paper projects the vectors of larger oracles. Where an oracle has as many"
        " dimensions as its disciple, main directions are its own vectors.",
        rows=ablations.projection_rows,
        texts=("disciple", "oracle", "projection", "run"),
        more=("P@1 against main directions",),
    ),
)


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
        rows = part.rows(runs)
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
