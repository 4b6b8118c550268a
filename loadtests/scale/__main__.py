"""`python -m loadtests.scale`: latency, memory, start and build time by the number of keys.

Keys are recombined from the texts of a bundle and of further files. Bundles of each size are kept
in OUT/bundles, so that an interrupted run continues. Writes scale.json, scale.md and scale.png.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App

from loadtests.measure.environment import environment
from loadtests.measure.traffic import Load
from loadtests.results.result_table import Report, Row
from loadtests.scale import growth_plot
from loadtests.scale.bundles import Sources, Vectors, build, check_keys
from loadtests.scale.growth import fitted
from loadtests.scale.measurement import Measured, measure
from loadtests.scale.recombined import Pairs
from service.command_line import open_console, run
from training.commands.options import MANY

GROWING = (
    "p50_ms", "p99_ms", "processor_ms", "vector_seconds", "index_seconds", "ready_seconds",
    "resident_mb",
)  # fmt: skip
QUERIES = 2_000

app = App(name="loadtests.scale", help=__doc__)


@app.default
def scale(
    *,
    bundle: Path,
    out: Path,
    sizes: Annotated[tuple[int, ...], MANY] = (130_000, 1_000_000, 5_000_000),
    texts: Annotated[tuple[Path, ...], MANY] = (),
    vectors: Vectors = "encoded",
    dimensions: int | None = None,
    rate: float = 40.0,
    seconds: float = 20.0,
    recall_queries: int = 200,
    seed: int = 0,
) -> int:
    """Build, measure, report.

    Parameters
    ----------
    bundle
        Its texts are recombined, and its encoder, index and predictor settings are used.
    out
        Folder for the report and the bundles.
    sizes
        Numbers of keys.
    texts
        Files of further texts to recombine (one a line, or LF-XMC JSON with titles), for example
        descriptions of packages.
    vectors
        encoded: by the encoder, which takes most of the time. drawn:
        the sum of two real texts' vectors and noise; this measures the index in minutes.
    dimensions
        Keep only the first so many dimensions of keys and queries; needs the extra `export`.
    rate
        Queries a second, open loop.
    seconds
        Length of each open loop.
    recall_queries
        Queries whose recall is measured against an exact scan.
    seed
        Draws keys, queries and arrivals.
    """
    console = open_console(stderr=True)
    load = Load(rate=rate, label_rate=0, seconds=seconds, seed=seed)
    sizes = tuple(sorted(check_keys(size) for size in sizes))
    sources = Sources.read(bundle, texts, dimensions=dimensions, work=out / "sources")
    queries = Pairs.drawn(QUERIES, sources=len(sources.texts), seed=seed + 1).texts(sources.texts)
    results = []
    for keys in sizes:
        console.print(f"{keys:,} keys: building ...")
        built = build(sources, out / "bundles", keys=keys, vectors=vectors, seed=seed)
        console.print(f"{keys:,} keys: measuring ...")
        results.append(measure(built, queries, load, recall_queries=recall_queries))
    Report(
        title="Growth with the number of keys",
        settings={"vectors": vectors, **sources.described(), **asdict(load)},
        environment=environment(),
        rows=[*(result.row() for result in results), *law_rows(results)],
    ).publish(out, "scale")
    growth_plot.draw(out / "scale.png", sizes, series(results))
    return 0


def series(results: Sequence[Measured]) -> dict[str, list[float]]:
    """The values of each figure, in the order of the sizes."""
    names = (*GROWING, "recall")
    return {name: [getattr(result, name) for result in results] for name in names}


def law_rows(results: Sequence[Measured]) -> list[Row]:
    """How each figure grows; none for a single size."""
    if len(results) < 2:
        return []
    keys, values = [result.keys for result in results], series(results)
    laws = {name: fitted(keys, values[name]) for name in GROWING}
    return [
        Row(what=f"growth of {name}", goal="-", measured=str(law), figures=asdict(law))
        for name, law in laws.items()
    ]


if __name__ == "__main__":
    sys.exit(run(app))
