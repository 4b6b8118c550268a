"""Panels of `simulate stream` results: recall of novel labels by age and by clicks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from service.core.errors import InvalidData
from training.experiments.replay import Bucket, ReplayResult
from training.report.panels import Curve, Panel


def read_streams(paths: Sequence[Path]) -> list[ReplayResult]:
    """Read files of `simulate stream --json`; raises `InvalidData`, which names the file."""
    return [_read(path) for path in paths]


def stream_panels(streams: Sequence[ReplayResult]) -> Iterator[Panel]:
    """For each stream a panel by age and, if clicks were learned, a panel by clicks."""
    for number, stream in enumerate(streams, start=1):
        yield _panel(f"{number}-age", stream, stream.by_age, "queries since it was posted")
        if stream.learn:
            yield _panel(f"{number}-clicks", stream, stream.by_clicks, "clicks learned for it")


def _panel(name: str, stream: ReplayResult, buckets: Sequence[Bucket], x_label: str) -> Panel:
    metrics = list(buckets[0].recall) if buckets else []
    return Panel(
        name=name,
        title=_title(stream),
        x=f"{x_label}, at least",
        y="recall of novel labels, percent",
        curves=tuple(
            Curve(
                name=metric,
                points=tuple((float(x), bucket.recall[metric]) for x, bucket in enumerate(buckets)),
                style=style,
            )
            for style, metric in enumerate(metrics)
        ),
        ticks=tuple((float(x), f"{bucket.first:,}") for x, bucket in enumerate(buckets)),
        limits=(0.0, 100.0),
    )


def _title(stream: ReplayResult) -> str:
    posted = "one-shot" if stream.one_shot else "zero-shot"
    return f"{stream.dataset}, {posted}{', clicks learned' if stream.learn else ''}"


def _read(path: Path) -> ReplayResult:
    try:
        return TypeAdapter(ReplayResult).validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidData(path, f"cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise InvalidData(path, "is not what `simulate stream --json` writes") from error
