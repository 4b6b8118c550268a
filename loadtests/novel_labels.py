"""`python -m loadtests.novel_labels`: the time that a combiner takes for a new label.

First the same labels are represented by their texts alone and with the combiner, in this process,
in alternating batches of the size that the encoding children use. The difference is the time of
shortlist, refinement and combiner. Then labels are posted one after the other to a server. Writes
novel_labels.json and novel_labels.md.
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

from loadtests.measure.environment import environment
from loadtests.measure.writing import post_single_labels
from loadtests.results.goals import posted_row
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

GOAL_MS = 1.0  # a label

app = App(name="loadtests.novel_labels", help=__doc__)


@app.default
def novel_labels(
    *,
    bundle: Path,
    data: Path,
    out: Path,
    labels: Annotated[int, Parameter(help="Novel labels to represent, at most.")] = 2_000,
    posts: Annotated[int, Parameter(help="Labels to post.")] = 300,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        A bundle with a combiner.
    data
        The folder that `python -m training split novel` wrote; its novel labels are represented.
    out
        Folder for the results.
    """
    opened = open_bundle(bundle)
    if opened.novel is None:
        raise InvalidInput(f"{bundle} has no combiner; export an IRENE checkpoint to get one")
    split = novel_split.read(data)
    texts = split.everything.labels.texts[split.facts.seen :][:labels]
    encoder = OnnxEncoder(bundle, opened.manifest.encoder)
    search_in_one_thread()
    text_only, combining = Representer(encoder), open_representer(encoder, opened)
    costs = list(combiner_seconds(text_only, combining, texts))
    with running_server(bundle) as server:
        posted = post_single_labels(server, cycle(texts), labels=posts)
    Report(
        title="Novel labels",
        settings={"bundle": opened.manifest.name, "labels": len(texts), "posts": posts},
        environment=environment(),
        rows=[_combiner_row(1_000 * float(np.median(costs))), posted_row(posted)],
    ).publish(out, "novel_labels")
    return 0


def combiner_seconds(
    text_only: Representer, combining: Representer, texts: Sequence[str]
) -> Iterator[float]:
    """Seconds that the combiner adds for each label, one figure a batch.

    The two representers alternate. The first batch warms up and is not reported.
    """
    for start in range(0, len(texts) - CHUNK_ITEMS + 1, CHUNK_ITEMS):
        items = [[(Role.LABEL, text)] for text in texts[start : start + CHUNK_ITEMS]]
        seconds = []
        for representer in (text_only, combining):
            began = perf_counter()
            representer.encode(items)
            seconds.append(perf_counter() - began)
        if start:
            yield (seconds[1] - seconds[0]) / CHUNK_ITEMS


def _combiner_row(milliseconds: float) -> Row:
    return Row(
        what=f"shortlist, refinement and combiner, {CHUNK_ITEMS} labels a batch",
        goal=f"<= {GOAL_MS:g} ms a label in addition to encoding",
        measured=f"{milliseconds:.2f} ms",
        met=milliseconds <= GOAL_MS,
        figures={"milliseconds": milliseconds},
    )


if __name__ == "__main__":
    sys.exit(run(app))
