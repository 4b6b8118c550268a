"""`python -m loadtests.novel_labels`: what a combiner costs, beside encoding and over HTTP.

In this process, the same labels are encoded alone and represented whole, turn by turn in batches as
the encoding children take them; the difference is shortlist, refinement and combiner. Then labels
are posted one after the other to a server of its own. Writes novel_labels.json and novel_labels.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Annotated

import numpy as np
from cyclopts import App, Parameter
from rich.console import Console

from loadtests.measure.environment import environment
from loadtests.measure.latency_summary import Summary
from loadtests.measure.traffic import single_labels
from loadtests.results.result_table import Report, Row
from service.command_line import run
from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.encoding.representer import Representer, open_representer
from service.core.errors import InvalidInput
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.types import Role
from service.engine.label_encoding import CHUNK_ITEMS
from training.datasets import novel_split
from training.experiments.service_process import running_server

GOAL_MS, GOAL_POSTED_MS = 1.0, 15.0

app = App(name="loadtests.novel_labels", help=__doc__)


@app.default
def novel_labels(
    *,
    bundle: Path,
    data: Path,
    out: Path,
    labels: Annotated[int, Parameter(help="Labels to represent, at most all novel ones.")] = 2_000,
    posts: Annotated[int, Parameter(help="Labels to post.")] = 300,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        A bundle with a combiner.
    data
        SPLIT, as `python -m training split novel` writes it: its novel labels are represented.
    out
        Folder for the results.
    """
    opened = open_bundle(bundle)
    if opened.novel is None:
        raise InvalidInput(f"{bundle} has no combiner")
    split = novel_split.read(data)
    texts = split.everything.labels.texts[split.facts.seen :][:labels]
    encoder = OnnxEncoder(bundle, opened.manifest.encoder)
    search_in_one_thread()
    costs = list(extra(Representer(encoder), open_representer(encoder, opened), texts))
    with running_server(bundle) as server:
        posted = Summary.of(single_labels(server, cycle(texts), count=posts))
    per_label = 1_000 * float(np.median(costs))
    report = Report(
        title="Novel labels",
        settings={"bundle": opened.manifest.name, "labels": len(texts), "posts": posts},
        environment=environment(),
        rows=[
            Row(
                what=f"shortlist, refinement and combiner, {CHUNK_ITEMS} labels a batch",
                goal=f"<= {GOAL_MS:g} ms a label beside encoding",
                found=f"{per_label:.2f} ms",
                met=per_label <= GOAL_MS,
                figures={"milliseconds": per_label},
            ),
            Row(
                what="POST /labels, one label, synced and visible",
                goal=f"p50 <= {GOAL_POSTED_MS:g} ms",
                found=str(posted),
                met=posted.p50 <= GOAL_POSTED_MS,
                figures={"p50": posted.p50, "p99": posted.p99},
            ),
        ],
    )
    report.write(out, "novel_labels")
    Console().print(report.table())
    return 0


def extra(plain: Representer, whole: Representer, texts: Sequence[str]) -> Iterator[float]:
    """Seconds a label beyond its encoding, batch by batch; the first warms up."""
    for start in range(0, len(texts) - CHUNK_ITEMS + 1, CHUNK_ITEMS):
        items = [[(Role.LABEL, text)] for text in texts[start : start + CHUNK_ITEMS]]
        seconds = []
        for representer in (plain, whole):
            began = perf_counter()
            representer.encode(items)
            seconds.append(perf_counter() - began)
        if start:
            yield (seconds[1] - seconds[0]) / CHUNK_ITEMS


if __name__ == "__main__":
    sys.exit(run(app))
