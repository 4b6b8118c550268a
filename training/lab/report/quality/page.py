"""training/lab/measured/README.md: the committed results of all systems as Markdown tables.

    MEASURED/SET/RUN/results.json        what `score` or `peer` wrote; one table for each data set
    MEASURED/SET/RUN/seed-1/...          results of other seeds
    MEASURED/SET/robustness.json         what `robustness` wrote
    MEASURED/unidec/DATASET/RUN/...      UniDEC's ablations, see `unidec_tables`
    MEASURED/novel/NAME.json             novel labels, see `novel_tables`

SET names what was run together: a data set, or a comparison. Sets with oracles, guided runs or a
robustness.json have a section of their own per data set (`training.lab.report.mogic`). The page
depends on these files alone. A test compares it with the committed page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from service.core.errors import InvalidInput
from training.evaluation import results
from training.lab import robustness
from training.lab.comparisons import comparison as comparisons
from training.lab.report.mogic.relations import is_of_mogic
from training.lab.report.mogic.section import mogic_section
from training.lab.report.orderings import orderings
from training.lab.report.quality.novel_tables import novel_section
from training.lab.report.quality.unidec_tables import unidec_section
from training.lab.report.runs import Run, grouped, read_run
from training.lab.report.seeds import seed_lines
from training.lab.report.tables import devices, run_table

ANY_DATA = "own-data"  # the comparison for a data set that has none under its own name

INTRODUCTION = """\
# Measured quality

All figures are in percent, on the test rows; every key is scanned. [notes.md](notes.md) says how
each run was made, what the figures mean, and what runs that are not kept here measured.
[not-adopted.md](not-adopted.md) lists ideas that were measured and removed.

This page is generated from the `results.json` files of this folder; change them, not the page:

    keymatch lab tables --input training/lab/measured --out training/lab/measured/README.md
"""

SIDE_BY_SIDE = """\
{rows:,} test rows. `keymatch lab compare {comparison}` trains and scores these systems;
`keymatch lab report --run training/lab/measured/{dataset}/* --out report` shows all metrics.
Lambda (memorization), b (depth) and tau (temperature) are chosen on {held_out} held-out training
rows. "Labels alone" is the same encoder without the memory (lambda 0). Peers have no lambda. The
best figure of each column is bold. Trained on {devices}.
"""

ORDERINGS = """\
Whether the paper's orderings hold here, counted over all pairs of figures that the claim compares:
"""


def quality_page(measured: Path) -> str:
    """The page for a folder of results.

    Raises `InvalidInput` or `InvalidData` for a folder without results, or with results that cannot
    be compared.
    """
    folders = sorted(path.parent for path in measured.glob(f"*/*/{results.FILE}"))
    if not folders:
        raise InvalidInput(f"{measured} holds no results (SET/RUN/{results.FILE})")
    read = [read_run(folder) for folder in folders]
    noise = {path: robustness.read(path) for path in sorted(measured.glob(f"*/{robustness.FILE}"))}
    of_mogic = {run.folder.parent for run in read if is_of_mogic(run)}  # a set counts as a whole
    of_mogic |= {path.parent for path in noise}
    plain = grouped([run for run in read if run.folder.parent not in of_mogic])
    guided = grouped([run for run in read if run.folder.parent in of_mogic])
    parts = [INTRODUCTION]
    parts += ["\n".join(_dataset_section(dataset, runs)) for dataset, runs in plain.items()]
    for dataset, runs in guided.items():
        parts.append("\n".join(mogic_section(dataset, runs, noise)))
    others = (list(unidec_section(measured)), list(novel_section(measured)))
    return "\n".join([*parts, *("\n".join(lines) for lines in others if lines)])


def _dataset_section(dataset: str, runs: Sequence[Run]) -> Iterator[str]:
    yield f"## {dataset}\n"
    yield SIDE_BY_SIDE.format(
        dataset=dataset,
        comparison=dataset if dataset in comparisons.names() else ANY_DATA,
        held_out=_held_out(runs),
        rows=len(runs[0].rows),
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


def _held_out(runs: Sequence[Run]) -> str:
    """Format the numbers of held-out rows of the runs."""
    counts = sorted({run.results.held_out_rows for run in runs} - {0})
    return " or ".join(f"{count:,}" for count in counts) or "no"
