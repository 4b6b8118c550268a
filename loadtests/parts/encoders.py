"""`python -m loadtests.parts.encoders FOLDER ...`: cost and closeness of encoder graphs.

Each folder is a bundle or an exported encoder; its query encoder is measured as well. For every
graph: processor time a text alone and in batches of 8 and 32, on one thread; the cosine of its
vectors to those of the first graph; and the largest difference of a component between a vector
alone and in a batch of 32 texts of mixed lengths. The graphs take turns batch by batch, so each
finds the processor's caches as another one left them, as a search leaves them between two queries.
Writes encoders.json and encoders.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import thread_time

import numpy as np
from cyclopts import App

from export.exported_encoder import is_exported, open_exported
from loadtests.measure.environment import environment
from loadtests.results.result_table import Report, Row
from service.command_line import run
from service.core.bundle.bundle import ENCODER, QUERY_ENCODER
from service.core.bundle.manifest import EncoderFacts, read
from service.core.encoding.encoder import OnnxEncoder
from service.core.encoding.graph_inputs import Tokens
from service.core.types import Floats, Role
from training.datasets import lf_xmc

BATCHES = (1, 8, 32)
WARM_UP_TEXTS = 32

app = App(name="loadtests.parts.encoders", help=__doc__)


@dataclass(kw_only=True, eq=False)
class Graph:
    """A graph, its tokenized texts, their vectors [n, d] by size of batch, and the time it took."""

    name: str
    encoder: OnnxEncoder
    tokens: Tokens
    batch_invariant: bool
    vectors: dict[int, list[Floats]] = field(default_factory=dict)
    seconds: dict[int, list[float]] = field(default_factory=dict)  # a text, by batch

    def encode(self, start: int, size: int) -> None:
        """Encode the batch of `size` texts that begins at `start`."""
        batch = self.tokens[start : start + size]
        began = thread_time()
        vectors = self.encoder.embed_batch(batch)
        self.seconds.setdefault(size, []).append((thread_time() - began) / len(batch))
        self.vectors.setdefault(size, []).append(vectors)

    def all_vectors(self, size: int) -> Floats:
        """The vectors of all texts, [n, d]."""
        return np.concatenate(self.vectors[size])


@app.default
def encoders(*folders: Path, data: Path, out: Path, texts: int = 960, seed: int = 0) -> int:
    """Measure and report.

    Parameters
    ----------
    folders
        Bundles and exported encoders; cosines refer to the first graph of the first folder.
    data
        The data set whose test queries are encoded.
    out
        Folder for encoders.json and encoders.md.
    texts
        How many queries are encoded.
    seed
        Draws the queries.
    """
    queries = lf_xmc.read(data).test.instances.texts
    rows = np.random.default_rng(seed).permutation(len(queries))[:texts].tolist()
    drawn = [queries[row] for row in rows]
    graphs = [graph for folder in folders for graph in open_graphs(folder, drawn)]
    for graph in graphs:  # the first call of a graph allocates memory
        graph.encoder.embed_batch(graph.tokens[:WARM_UP_TEXTS])
    for size in BATCHES:
        for start in range(0, len(drawn), size):
            for graph in graphs:
                graph.encode(start, size)
    Report(
        title="Encoder graphs: median processor milliseconds a text, closeness",
        settings={
            "folders": [folder.name for folder in folders],
            "queries": len(drawn),
            "tokens a query": round(float(np.mean([len(ids) for ids in graphs[0].tokens])), 2),
        },
        environment=environment(),
        rows=[row for graph in graphs for row in _rows(graph, graphs[0])],
    ).publish(out, "encoders")
    return 0


def open_graphs(folder: Path, texts: Sequence[str]) -> Iterator[Graph]:
    """The encoder of a bundle or an exported encoder, and its query encoder if it has one."""
    facts = open_exported(folder).description if is_exported(folder) else read(folder)
    yield _graph(folder, facts.encoder, texts, file=ENCODER)
    if facts.query_encoder is not None:
        yield _graph(folder, facts.query_encoder, texts, file=QUERY_ENCODER)


def _graph(folder: Path, facts: EncoderFacts, texts: Sequence[str], *, file: str) -> Graph:
    encoder = OnnxEncoder(folder, facts, graph=file)
    return Graph(
        name=f"{folder.name}/{file} ({facts.quantization})",
        encoder=encoder,
        tokens=encoder.tokenize(texts, role=Role.QUERY),
        batch_invariant=facts.batch_invariant,
    )


def _rows(graph: Graph, reference: Graph) -> Iterator[Row]:
    milliseconds = {size: 1e3 * float(np.median(graph.seconds[size])) for size in BATCHES}
    alone = graph.all_vectors(1)
    cosines = np.sum(alone * reference.all_vectors(1), axis=1)
    difference = float(np.abs(alone - graph.all_vectors(BATCHES[-1])).max())
    yield Row(
        what=f"{graph.name}: alone, in batches of 8, of 32",
        goal="-",
        measured=" / ".join(f"{value:.2f}" for value in milliseconds.values()) + " ms",
        figures={f"batch_{size}": value for size, value in milliseconds.items()},
    )
    yield Row(
        what=f"{graph.name}: cosine to {reference.name}, mean and least",
        goal="-",
        measured=f"{cosines.mean():.4f}, {cosines.min():.4f}",
        figures={"mean": float(cosines.mean()), "least": float(cosines.min())},
    )
    yield Row(
        what=f"{graph.name}: a vector alone and in a batch",
        goal="<= 1e-06" if graph.batch_invariant else "not run in batches",
        measured=f"{difference:.1e}",
        met=difference <= 1e-6 if graph.batch_invariant else None,
        figures={"difference": difference},
    )


if __name__ == "__main__":
    sys.exit(run(app))
