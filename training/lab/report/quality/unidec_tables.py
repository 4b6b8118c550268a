"""UniDEC's ablations in the form of its paper: Tables 5, 6 and 7, and the heads' dimensions.

    MEASURED/unidec/DATASET/RUN/results.json    the entries of the comparison `unidec-DATASET`

A run's table follows from the settings that differ from those of the run named `unidec`. The paper
has no memory: its figures are of label keys alone (lambda 0). P@1 with memory is next to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from service.core.errors import InvalidInput
from training.evaluation import results
from training.lab.report.runs import Run, read_runs
from training.lab.report.seeds import seed_lines
from training.lab.report.tables import Table, percent

FOLDER, BASE = "unidec", "unidec"
METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
BYTES = 2  # per number in a key: memories hold fp16
HEADS = {None: "UniDEC", "1.0": "UniDEC-de, its first head", "0.0": "UniDEC-clf, its second head"}
HARD, SHARE = "batch.hard_negatives", "head_share"
# values of beta, eta and lambda for recipes that leave them out
DEFAULTS = {"batch.positives": 1, HARD: 0, "system.encoder_weight": 0.5}
DIMENSIONS = {"heads.encoder", "heads.classifier"}
IGNORED = ("encoder.name", "optimizer.", "validation.")

INTRODUCTION = """\
## UniDEC's ablations

`keymatch lab compare unidec-debian-seealso` and `unidec-moby` train and score these runs;
their results lie in `unidec/`. Heads and classifiers learn beside a frozen encoder: MiniLM for
debian-seealso, and for moby MiniLM after training by RAE-XMC's loss. As in the paper, a label is
found by its key alone (lambda 0); the last columns have P@1 with the memory, at the lambda that was
chosen, and the bytes of a key, whose numbers are fp16.
"""


def unidec_section(measured: Path) -> Iterator[str]:
    """The lines of the section, none without results.

    Raises `InvalidInput` if a data set has no run named `unidec`, and all errors of `read_runs`.
    """
    folders = sorted(path.parent for path in measured.glob(f"{FOLDER}/*/*/{results.FILE}"))
    if not folders:
        return
    yield INTRODUCTION
    for dataset, runs in read_runs(folders).items():
        base = next((run for run in runs if run.name == BASE), None)
        if base is None:
            raise InvalidInput(
                f"{measured / FOLDER}: {dataset} has no run named {BASE}, which the others differ"
                " from"
            )
        others = {run.name: differences(run, base) for run in runs}
        yield f"### {dataset}\n"
        yield from _table_5(runs, others, base)
        yield from _tables_6_and_7(runs, others, base)
        yield from _dimensions(runs, others)
        yield from seed_lines(runs)


def differences(run: Run, base: Run) -> dict[str, str]:
    """The settings of a run that differ from those of `base`, keyed table.key."""
    theirs = base.settings
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in run.settings.items()
        if theirs.get(name) != value and not name.startswith(IGNORED)
    }


def bytes_of_key(run: Run) -> int:
    """The bytes of a label's key: [D(z_l); Psi_l], or the half that is searched."""
    heads, share = run.results.settings["heads"], run.results.settings.get(SHARE)
    dimensions = {1.0: heads["encoder"], 0.0: heads["classifier"]}
    both = heads["encoder"] + heads["classifier"]
    return BYTES * int(both if share is None else dimensions.get(share, both))


def _table_5(
    runs: Sequence[Run], others: Mapping[str, Mapping[str, str]], base: Run
) -> Iterator[str]:
    """Compare each head with and without mined negatives."""
    with_hard = str(base.setting("batch", "hard_negatives"))
    found: dict[tuple[str | None, str], Run] = {}
    for run in runs:
        changed = others[run.name]
        if set(changed) <= {HARD, SHARE}:
            found[changed.get(SHARE), changed.get(HARD, with_hard)] = run
    yield "Table 5: mined negatives, and each head alone.\n"
    sides = (f"η {with_hard}", "without mined negatives")
    headings = ["searched by", *(f"{side}: {name}" for side in sides for name in METRICS)]
    lines = []
    for share, name in HEADS.items():
        pair = [found.get((share, hard)) for hard in (with_hard, "0")]
        if any(pair):
            lines.append([name, *(figure for run in pair for figure in _figures(run))])
    yield from Table(headings=headings, rows=lines, texts=1).markdown()


def _tables_6_and_7(
    runs: Sequence[Run], others: Mapping[str, Mapping[str, str]], base: Run
) -> Iterator[str]:
    """A row for each run: what it changes, its hyperparameters, its figures."""
    yield "Tables 6 and 7: each row differs from the first one in what it names.\n"
    headings = ["run", "differs in", "d", "β", "η", "λ", *METRICS, "P@1, memory", "bytes a key"]
    chosen = [run for run in runs if not others[run.name].keys() & DIMENSIONS]
    chosen.sort(key=lambda run: (run is not base, run.name))
    yield from Table(
        headings=headings, rows=[_row(run, others[run.name]) for run in chosen], texts=2
    ).markdown()


def _dimensions(runs: Sequence[Run], others: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """A row for each run, from the most dimensions to the fewest."""
    chosen = [run for run in runs if set(others[run.name]) <= DIMENSIONS]
    chosen.sort(key=bytes_of_key, reverse=True)
    yield "Dimensions of each head.\n"
    headings = ["d", "bytes a key", *METRICS, "P@1, memory"]
    lines = [
        [
            _dimension(run),
            str(bytes_of_key(run)),
            *_figures(run),
            percent(run.chosen.metrics["P@1"]),
        ]
        for run in chosen
    ]
    yield from Table(headings=headings, rows=lines, texts=0).markdown()


def _row(run: Run, changed: Mapping[str, str]) -> list[str]:
    said = ", ".join(f"{name} {value}" for name, value in changed.items())
    stated = [run.setting(*place.split(".")) for place in DEFAULTS]
    numbers = zip(stated, DEFAULTS.values(), strict=True)
    shown = [str(default if value is None else value) for value, default in numbers]
    cells = (*_figures(run), percent(run.chosen.metrics["P@1"]), str(bytes_of_key(run)))
    return [run.name, said, _dimension(run), *shown, *cells]


def _dimension(run: Run) -> str:
    sizes = (run.setting("heads", "encoder"), run.setting("heads", "classifier"))
    return str(sizes[0]) if sizes[0] == sizes[1] else f"{sizes[0]} and {sizes[1]}"


def _figures(run: Run | None) -> list[str]:
    """The metrics of the label keys alone; empty cells without a run."""
    return [percent(None if run is None else run.alone(name)) for name in METRICS]
