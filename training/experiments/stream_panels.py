"""What `simulate stream` measured, as panels: recall of novel labels by their age and by clicks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from service.core.errors import InvalidData
from training.experiments.replay import Bucket, ReplayResult
from training.report.panels import Curve, Panel


def read_streams(paths: Sequence[Path]) -> list[ReplayResult]:
    """Read what was measured; raises `InvalidData` naming the file."""
    return [_read(path) for path in paths]


def stream_panels(streams: Sequence[ReplayResult]) -> Iterator[Panel]:
    """A panel of each stream by age and, where clicks were learned, one by clicks."""
    for place, stream in enumerate(streams, start=1):
        yield _panel(f"{place}-age", stream, stream.by_age, "queries since it was posted")
        if stream.learn:
            yield _panel(f"{place}-clicks", stream, stream.by_clicks, "clicks learned for it")


def _panel(name: str, stream: ReplayResult, found: Sequence[Bucket], x: str) -> Panel:
    metrics = list(found[0].recall) if found else []
    return Panel(
        name=name,
        title=_title(stream),
        x=f"{x}, at least",
        y="recall of novel labels, percent",
        curves=tuple(
            Curve(
                name=metric,
                points=tuple((float(at), bucket.recall[metric]) for at, bucket in enumerate(found)),
                style=style,
            )
            for style, metric in enumerate(metrics)
        ),
        ticks=tuple((float(at), f"{bucket.first:,}") for at, bucket in enumerate(found)),
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
