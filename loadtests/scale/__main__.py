"""`python -m loadtests.scale`: latency, memory, start and build time by the number of keys.

Keys are made from recombined texts of a bundle and of further files. The bundles of all sizes are
kept in OUT/bundles, so an interrupted run continues. Writes scale.json and scale.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import App

from loadtests.bare_predictor import BarePredictor, Recall, recall_of_queries
from loadtests.report import Report, Row
from loadtests.resources import bytes_per_key, process_tree, resident, with_cpu_time
from loadtests.saturation import failures_text
from loadtests.scale.bundles import Built, Pairs, Sources, Vectors, build, check_keys
from loadtests.traffic import Load, Summary, measure_predictions, warm_up
from service.child_server import running_server
from service.command_line import open_console, run
from training.commands.options import MANY

GROWING = (
    "p50_ms", "p99_ms", "cpu_ms", "vector_seconds", "index_seconds", "ready_seconds",
    "resident_mb",
)  # fmt: skip
QUERIES = 2_000
READY_SECONDS = 1_200.0  # the start verifies checksums of many gigabytes
WARM_UP_SECONDS = 4.0

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
        The bundle whose texts are recombined, with its encoder, index and predictor settings.
    out
        Folder for the report and the bundles.
    sizes
        Numbers of keys.
    texts
        Files of further texts to recombine (one per line, or LF-XMC JSON with titles), for example
        descriptions of packages.
    vectors
        encoded: by the encoder, which takes most of the time. drawn: the sum of two real texts'
        vectors and noise; this measures the index in minutes.
    dimensions
        Keep only this many first dimensions of keys and queries; needs the extra `export`.
    rate
        Queries per second in the open loop.
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
        settings={
            "vectors": vectors,
            "sources": len(sources.texts),
            "dimensions": sources.facts.dimension,
            **asdict(load),
        },
        rows=[*map(size_row, results), *law_rows(results)],
    ).publish(out, "scale")
    return 0


def measure(
    built: Built, queries: Sequence[str], load: Load, *, recall_queries: int
) -> dict[str, Any]:
    """Serve a bundle and send queries that it does not contain; return the figures."""
    # Use a separate thread: faiss sets its threads for the thread that searches, and this thread
    # builds the next bundle on all cores.
    with ThreadPoolExecutor(1) as thread:
        recall = thread.submit(_recall, built, queries[:recall_queries]).result()
    options = ["--no-access-log"]
    with running_server(built.folder, options=options, ready_seconds=READY_SECONDS) as server:
        asked = cycle(queries)
        warm_up(server, asked, seconds=min(WARM_UP_SECONDS, load.seconds))
        outcome, used = with_cpu_time(server.pid, lambda: measure_predictions(server, asked, load))
        resident_mb = sum(resident(pid).total for pid in process_tree(server.pid))
    latency = Summary.of(outcome.latencies)
    return {
        "keys": built.keys,
        "vector_seconds": built.vector_seconds,
        "index_seconds": built.index_seconds,
        "ready_seconds": server.seconds_to_ready,
        "resident_mb": resident_mb,
        # on disk and mapped: graph edges, a second copy of the vector, votes
        "bytes_beyond_vector": bytes_per_key(built.folder, allowance=0).total,
        "p50_ms": latency.p50,
        "p99_ms": latency.p99,
        "cpu_ms": used / len(outcome.late) * 1000,  # the service's, per query sent
        "recall": recall.mean,
        "worst_recall": recall.worst,
        "depth": recall.depth,
        "failures": outcome.failures,
    }


def size_row(figures: dict[str, Any]) -> Row:
    """Return the row for one number of keys."""
    text = (
        "p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms, CPU {cpu_ms:.1f} ms a query; recall@{depth}"
        " {recall:.4f}; {resident_mb:.0f} MB resident, {bytes_beyond_vector:.0f} bytes a key"
        " beyond its vector; vectors in {vector_seconds:.0f} s, bundle in {index_seconds:.0f} s,"
        " ready in {ready_seconds:.1f} s"
    ).format(**figures)
    return Row(
        what=f"{figures['keys']:,} keys",
        goal="-",
        measured=text + failures_text(figures["failures"]),
        figures=figures,
    )


def _recall(built: Built, queries: Sequence[str]) -> Recall:
    bare = BarePredictor.open(built.folder)
    return recall_of_queries(bare.encoder, bare.view, queries)


def fitted(keys: Sequence[int], values: Sequence[float]) -> dict[str, float]:
    """Fit two laws by least squares, over at least two numbers of keys.

    value = factor * keys ** exponent, and value = start + tenfold * log10(keys).
    """
    logarithms = np.log10(np.asarray(keys, np.float64))
    exponent, log_factor = np.polyfit(logarithms, np.log10(values), 1).tolist()
    tenfold, start = np.polyfit(logarithms, values, 1).tolist()
    return {"exponent": exponent, "factor": 10**log_factor, "tenfold": tenfold, "start": start}


def law_rows(results: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """Yield rows that say how each figure grows; none for a single size."""
    keys = [result["keys"] for result in results]
    for name in GROWING if len(set(keys)) > 1 else ():
        law = fitted(keys, [result[name] for result in results])
        yield Row(
            what=f"growth of {name}",
            goal="-",
            measured="keys^{exponent:.2f}; {tenfold:+.3g} with each tenfold".format(**law),
            figures=law,
        )


if __name__ == "__main__":
    sys.exit(run(app))
