"""All runs of a data set in one Markdown table: settings that were chosen, figures, time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from training.report.markdown import markdown_table
from training.report.runs import Run
from training.report.tables import duration, percent

METRICS = ("P@1", "P@5", "R@100", "PSP@5")


def run_table(runs: Sequence[Run]) -> Iterator[str]:
    """Lines of the table, by ascending P@1; the best figure of each column is bold."""
    headings = ("run", "system", "P@1, labels alone", "lambda", "b", "tau", *METRICS, "trained in")
    ordered = sorted(runs, key=lambda run: (run.chosen.metrics["P@1"], run.name))
    best = {metric: max(run.chosen.metrics[metric] for run in runs) for metric in METRICS}
    yield from markdown_table(headings, [_run_cells(run, best) for run in ordered], texts=2)


def devices(runs: Sequence[Run]) -> str:
    """The processors, and which runs each of them trained."""
    names: dict[str, list[str]] = {}
    for run in runs:
        if run.results.training_seconds is not None:
            device = str(run.results.hardware.get("device", "an unknown processor"))
            names.setdefault(device, []).append(run.name)
    return "; ".join(f"{device}: {', '.join(trained)}" for device, trained in names.items())


def _run_cells(run: Run, best: Mapping[str, float]) -> list[str]:
    chosen, labels_alone = run.chosen, run.labels_alone
    seconds = run.results.training_seconds
    figures = []
    for metric in METRICS:
        figure = percent(chosen.metrics[metric])
        figures.append(f"**{figure}**" if figure == percent(best[metric]) else figure)
    return [
        run.name,
        run.results.system,
        "" if labels_alone is None else percent(labels_alone.metrics["P@1"]),
        *(
            "" if value is None else f"{value:g}"
            for value in (chosen.memorization, chosen.depth, chosen.tau)
        ),
        *figures,
        "" if seconds is None else duration(seconds),
    ]
