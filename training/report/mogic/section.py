"""The section of training/measured/README.md that has the counterparts of MOGIC's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from training.comparisons import comparison as comparisons
from training.evaluation.robustness import FILE, Robustness
from training.report.mogic import ablations
from training.report.mogic.figures import Row, table
from training.report.mogic.noise import bank_rows, noise_rows, noise_table, source_rows
from training.report.run_table import devices, run_table
from training.report.runs import Run
from training.report.seeds import seed_lines

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
`python -m training robustness --runs RUNS... --data DATA --out FOLDER` writes.
"""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One table of runs: its heading, what it shows, and the texts before and behind figures."""

    heading: str
    words: str
    rows: Callable[[Sequence[Run]], list[Row]]
    texts: tuple[str, ...]
    more: tuple[str, ...] = ()


ORACLES = Part(
    heading="Oracles (Table 4)",
    words="What guides other runs, with the true metadata of the test rows. Larger oracles such as"
    " the paper's Phi-2 and LLaMA-2 (`train oracle-llm`) were measured only where they are listed.",
    rows=ablations.oracle_rows,
    texts=("oracle", "system", "reads metadata of"),
)
ABLATIONS = (
    Part(
        heading="Guided and unguided systems (Tables 7 and 13)",
        words="Each disciple with guidance as in the paper (alpha and beta 0.1), and without.",
        rows=ablations.guided_rows,
        texts=("model", "run"),
    ),
    Part(
        heading="What guidance gains, over several seeds",
        words="Mean and standard deviation of the difference between guided and unguided, both with"
        " the same seed, which also draws the held-out rows.",
        rows=ablations.seeded_rows,
        texts=("system", "run", "seeds"),
    ),
    Part(
        heading="The losses (Table 5)",
        words="The disciple's own loss, alignment and matching, each left out.",
        rows=ablations.loss_rows,
        texts=("disciple", "losses", "run"),
        more=("P@1 against all three",),
    ),
    Part(
        heading="The weights of the losses",
        words="Not in the paper, which takes 0.1 for both.",
        rows=ablations.weight_rows,
        texts=("disciple", "alpha", "beta", "run"),
        more=("P@1 against no guidance",),
    ),
    Part(
        heading="Components (Table 10)",
        words="Settings 4 and 5, in which the disciple itself reads texts with predicted metadata"
        " appended, have no counterpart: no system here predicts metadata before it encodes a text."
        " What an oracle loses with predicted metadata stands under Table 6.",
        rows=ablations.component_rows,
        texts=("disciple", "setting", "what is changed", "run"),
        more=("P@1 against setting 1",),
    ),
    Part(
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
    """Lines of the section of one data set; `noise` has the files of `robustness` by path.

    Raises `InvalidInput` for a guided run whose oracle is not among the runs.
    """
    yield INTRODUCTION.format(
        dataset=dataset,
        rows=len(runs[0].rows),
        commands="\n".join(_commands(runs)),
        devices=devices(runs),
    )
    for part in (ORACLES, *ABLATIONS):
        yield f"### {part.heading}\n\n{fill(part.words, WIDTH)}\n"
        rows = part.rows(runs)
        if rows:
            yield from table(part.texts, rows, more=part.more)
        else:
            yield NOT_MEASURED
    yield from _of_noise({path: one for path, one in noise.items() if one.dataset == dataset})
    yield "### All runs\n"
    yield from run_table(runs)
    yield ""
    yield from seed_lines(runs)


def _commands(runs: Sequence[Run]) -> Iterator[str]:
    """The comparisons of the sets; a set that is none has runs of `train`."""
    sets = dict.fromkeys(run.folder.parent.name for run in runs)
    known = [name for name in sets if name in comparisons.names()]
    for name in sorted(known, key=lambda name: len(comparisons.load(name).entries)):
        yield f"    python -m training compare {name} --data DATA --out RUNS"
    if not known:
        guided = "--set guidance.oracle=ORACLE"
        yield f"    python -m training train RECIPE --data DATA --out RUN {guided}"


def _of_noise(noise: Mapping[Path, Robustness]) -> Iterator[str]:
    """Tables 6, 8 and 9 of each file."""
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
        yield "**Table 6.** The source of the metadata; five items are predicted for an oracle.\n"
        yield from noise_table("metadata", source_rows(document))
        yield "**Table 8.** A bank cut at random: the share of the items that is left.\n"
        yield from noise_table("bank", bank_rows(document))
        yield "**Table 9.** The share of the true links that is replaced by random items.\n"
        yield from noise_table("replaced", noise_rows(document, "replaced"))
        yield "The same with links that are dropped.\n"
        yield from noise_table("dropped", noise_rows(document, "dropped"))
