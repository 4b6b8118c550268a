"""`python -m loadtests.parts.search_curves`: what shorter keys save and lose.

Every form of the keys (fp16 as served, 8 bits, cut by PCA or after the first dimensions) walks the
same graph with queues of several lengths. Each search follows the encoding of its query, as in the
service, since the encoder's weights drive the keys out of the processor's caches. Writes
search_curves.json, search_curves.md and search_curves.png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import thread_time

import numpy as np
from cyclopts import App

from loadtests.measure.bare_predictor import BarePredictor
from loadtests.measure.environment import environment
from loadtests.measure.key_forms import KeyForm, key_forms
from loadtests.results import search_plot
from loadtests.results.result_table import Report, Row
from service.command_line import run
from service.core.encoding.encoder import encode
from service.core.index.recall import recall_per_query
from service.core.types import Floats, Role, Rows
from training.datasets.dataset import Split
from training.datasets.lf_xmc import folder
from training.evaluation.metrics import labels_to_rank, precision, ranking_outcome

_QUEUES = (1.0, 1.5, 2.0, 3.0)  # lengths as multiples of the depth

app = App(name="loadtests.parts.search_curves", help=__doc__)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One form of the keys at one depth and length of the queue; times are processor time."""

    form: str
    depth: int
    ef: int
    recall: float
    precision_1: float
    precision_5: float
    p50_ms: float
    p99_ms: float
    walked_bytes: int

    def row(self) -> Row:
        """The point as a line of the report."""
        return Row(
            what=f"{self.form}; depth {self.depth}, ef {self.ef}",
            goal="",
            measured=(
                f"recall {self.recall:.4f}, P@1 {self.precision_1:.2%}, P@5 {self.precision_5:.2%},"
                f" p50 {self.p50_ms:.3f} ms, p99 {self.p99_ms:.3f},"
                f" {self.walked_bytes / 1e6:.0f} MB of keys"
            ),
            figures=asdict(self),
        )


@dataclass(frozen=True, kw_only=True)
class Searched:
    """Queries of the test split: texts [B], their vectors [B, d] and places in the split [B]."""

    bare: BarePredictor
    test: Split
    places: Rows
    texts: Sequence[str]
    vectors: Floats


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one search returned, [1, b], and its processor time."""

    similarities: Floats
    rows: Rows
    milliseconds: float


@app.default
def search_curves(
    *,
    bundle: Path,
    data: Path,
    out: Path,
    queries: int = 400,
    depths: tuple[int, ...] = (100, 200),
    seed: int = 0,
) -> int:
    """Measure every form, and draw the curves.

    Parameters
    ----------
    bundle
        The bundle whose graph is walked and whose encoder encodes the queries.
    data
        Folder of the data set that the bundle was exported from; its test rows are the queries.
    out
        Folder for the figures and the picture.
    queries
        How many test rows are searched at each point.
    depths
        Keys that each query retrieves.
    seed
        Draws the test rows.
    """
    searched = _searched(bundle, data, queries=queries, seed=seed)
    forms = list(key_forms(searched.bare.view.bundle))
    points = [point for depth in depths for point in _points(searched, forms, depth=depth)]
    Report(
        title="Recall, quality and processor time of a search, by form of the keys",
        settings={"bundle": bundle.name, "queries": len(searched.texts), "seed": seed},
        environment=environment(),
        rows=[point.row() for point in points],
    ).publish(out, "search_curves")
    search_plot.draw(
        out / "search_curves.png",
        {
            f"depth {depth}": {
                form: [
                    (at.p50_ms, at.recall) for at in points if (at.form, at.depth) == (form, depth)
                ]
                for form in (form.name for form in forms)
            }
            for depth in depths
        },
    )
    return 0


def _searched(bundle: Path, data: Path, *, queries: int, seed: int) -> Searched:
    bare, test = BarePredictor.open(bundle), folder.read(data).test
    drawn = np.random.default_rng(seed).permutation(len(test))[:queries]
    texts = [test.instances.texts[place] for place in drawn.tolist()]
    vectors = encode(bare.encoder, texts, role=Role.QUERY)
    return Searched(bare=bare, test=test, places=drawn, texts=texts, vectors=vectors)


def _points(searched: Searched, forms: Sequence[KeyForm], *, depth: int) -> Iterator[Point]:
    view, vectors = searched.bare.view, searched.vectors
    exact_similarities, exact_rows = view.retrieve(vectors, depth=depth, exact=True)
    for ef in (round(depth * times) for times in _QUEUES):
        for form, results in zip(forms, _search_in_turns(searched, forms, depth, ef), strict=True):
            similarities = np.concatenate([result.similarities for result in results])
            rows = np.concatenate([result.rows for result in results])
            recalls = recall_per_query(
                queries=vectors,
                retrieved=rows,
                exact_rows=exact_rows,
                exact_similarities=exact_similarities,
                vectors_of=view.vectors,
            )
            precision_1, precision_5 = _precisions(searched, similarities, rows)
            p50, p99 = np.percentile([result.milliseconds for result in results], [50, 99])
            yield Point(
                form=form.name,
                depth=depth,
                ef=ef,
                recall=float(np.mean(recalls)),
                precision_1=precision_1,
                precision_5=precision_5,
                p50_ms=float(p50),
                p99_ms=float(p99),
                walked_bytes=form.walked_bytes,
            )


def _search_in_turns(
    searched: Searched, forms: Sequence[KeyForm], depth: int, ef: int
) -> list[list[Result]]:
    """The results of each form; every query is answered by all forms, another one first each time.

    The machine may be faster at one moment than at another; so all forms have equal shares of it.
    """
    results: list[list[Result]] = [[] for _ in forms]
    for form in forms:  # the first search reads pages from the disk
        form.search(searched.vectors, count=depth, ef=ef)
    for place, text in enumerate(searched.texts):
        vector = searched.vectors[place : place + 1]
        for turn in range(len(forms)):
            chosen = (place + turn) % len(forms)
            encode(searched.bare.encoder, [text], role=Role.QUERY)
            start = thread_time()
            similarities, rows = forms[chosen].search(vector, count=depth, ef=ef)
            milliseconds = (thread_time() - start) * 1000
            results[chosen].append(
                Result(similarities=similarities, rows=rows, milliseconds=milliseconds)
            )
    return results


def _precisions(searched: Searched, similarities: Floats, rows: Rows) -> tuple[float, float]:
    """P@1 and P@5 of the labels that the bundle predicts from retrieved rows [B, b]."""
    bare, test = searched.bare, searched.test
    filtered = test.filtered[searched.places]
    options = replace(bare.options, top_k=labels_to_rank(filtered))
    ranked = np.full((len(rows), options.top_k), -1, np.int64)
    rankings = bare.predictor.vote(bare.view, (similarities, rows), options)
    for place, ranking in enumerate(rankings):
        ranked[place, : len(ranking.columns)] = ranking.columns
    outcome = ranking_outcome(ranked, test.labels_of[searched.places] != 0, filtered=filtered)
    return precision(outcome, k=1), precision(outcome, k=5)


if __name__ == "__main__":
    sys.exit(run(app))
