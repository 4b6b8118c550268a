"""The figure of a soak: memory and open files over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtests.soak.samples import Sample


def draw(path: Path, samples: Sequence[Sample], events: Mapping[str, float]) -> None:
    """Write a PNG; `events` are marked by lines, at seconds since the start."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    minutes = [sample.at / 60 for sample in samples]
    figure, (memory, files) = pyplot.subplots(2, 1, figsize=(10, 7), sharex=True)
    memory.plot(minutes, [sample.resident for sample in samples], label="resident")
    memory.plot(minutes, [sample.private for sample in samples], label="private")
    memory.plot(minutes, [sample.live for sample in samples], label="learned (estimated)")
    memory.set(ylabel="megabytes")
    memory.set_ylim(bottom=0)
    memory.legend()
    files.plot(minutes, [sample.descriptors for sample in samples])
    files.set(ylabel="open files", xlabel="minutes")
    files.set_ylim(bottom=0)
    for panel in (memory, files):
        panel.grid(alpha=0.3)
        for at in events.values():
            panel.axvline(at / 60, color="grey", linestyle=":")
    for name, at in events.items():
        memory.annotate(name, (at / 60, 0), rotation=90, fontsize=8, va="bottom")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
