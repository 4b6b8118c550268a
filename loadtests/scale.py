"""`python -m loadtests.scale`: latency, memory, start and build time by number of keys and library.

Keys are recombined texts of a bundle: the first half of one text's words and the second half of
another's. The bundles of all sizes are kept in OUT/bundles, so an interrupted run continues. Writes
scale.json and scale.md.

A search is also measured without the service: its CPU time with the shortest queue that reaches
the recall goal. `bytes_per_key` in scale.json has the size of each of a bundle's folders and files.

Shapes: S texts of the bundle, n texts drawn, d dimensions.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle, product
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from export.bundle.encode import encode_resumably
from loadtests.bare_predictor import BarePredictor, Recall, recall_of_queries
from loadtests.harness import Scenario, option, say
from loadtests.report import Row, failures_text
from loadtests.resources import process_tree, resident, with_cpu_time
from loadtests.traffic import Load, Summary, measure_predictions, warm_up
from service.child_server import running_server
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.content import BundleContent, write_bundle
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.errors import InvalidInput
from service.core.files.atomic import write_file
from service.core.index.choose_ef import smallest_ef
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.types import Halves, Role

QUERIES = 2_000
READY_SECONDS = 1_200.0  # the start verifies checksums of many gigabytes
INSTANCE_SHARE = 5  # one key in five is an instance, as on moby
VOTES_PER_INSTANCE = 10
NOISE = 0.5  # the noise's length; the two real vectors have length 1
_ROWS_AT_ONCE = 65_536
TIMES = ("vector_seconds", "index_seconds", "index_cpu_seconds")  # as a record holds them

Vectors = Literal["encoded", "drawn", "own"]


@dataclass(frozen=True, kw_only=True)
class Scale(Scenario):
    """Bundles of several sizes and libraries, built from a bundle's texts, encoder and settings."""

    title = "Growth with the number of keys"

    sizes: tuple[int, ...] = option(
        "Numbers of keys.",
        (
            130_000,
            1_000_000,
            5_000_000,
        ),
    )
    libraries: tuple[str, ...] = option(
        "Index libraries, as of `export bundle --library`. Default: the bundle's.", ()
    )
    vectors: Vectors = option(
        "encoded: by the encoder, which takes most of the time. drawn: the sum of two "
        "real texts' vectors and noise; this measures the index in minutes. own: the "
        "bundle's own texts and keys; sizes are at most its number of keys.",
        "encoded",
    )
    rate: float = option("Queries per second in the open loop.", 40.0)
    seconds: float = option("Length of each open loop.", 20.0)
    recall_queries: int = option("Queries whose recall is measured against an exact scan.", 200)

    def rows(self) -> Iterator[Row]:
        """Build and measure each bundle."""
        sizes = sorted(check_keys(size) for size in self.sizes)
        source = open_bundle(self.bundle)
        texts = source_texts(source)
        if self.vectors == "own" and sizes[-1] > len(texts):
            raise InvalidInput(f"the bundle has only {len(texts)} keys", field="sizes")
        queries = Pairs.drawn(QUERIES, sources=len(texts), seed=self.seed + 1).texts(texts)
        load = Load(rate=self.rate, seconds=self.seconds, seed=self.seed)
        libraries = self.libraries or [source.manifest.index.library]
        for keys, library in product(sizes, libraries):
            say(f"{keys:,} keys, {library} ...")
            built = build(
                source,
                self.out / "bundles",
                keys=keys,
                vectors=self.vectors,
                library=library,
                seed=self.seed,
            )
            yield measure(built, queries, load, recall_queries=self.recall_queries)


# Texts, vectors and bundles -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The two source texts of each drawn text, [n] each; the same seed draws the same."""

    heads: NDArray[np.int64]
    tails: NDArray[np.int64]

    @classmethod
    def drawn(cls, count: int, *, sources: int, seed: int) -> Pairs:
        """Draw `count` pairs of `sources` texts."""
        heads, tails = np.random.default_rng(seed).integers(sources, size=(2, count))
        return cls(heads=heads, tails=tails)

    def texts(self, sources: Sequence[str]) -> list[str]:
        """Return the recombined texts [n]."""
        return [
            recombined(sources[head], sources[tail])
            for head, tail in zip(self.heads.tolist(), self.tails.tolist(), strict=True)
        ]

    def vectors(self, sources: Halves, *, seed: int) -> Halves:
        """Return sums of the source texts' vectors [S, d] and noise, as unit vectors [n, d]."""
        random = np.random.default_rng(seed)
        drawn = np.empty_like(sources, shape=(len(self.heads), sources.shape[1]))
        for start in range(0, len(drawn), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            noise = random.standard_normal(drawn[rows].shape, dtype=np.float32)
            noise *= NOISE / np.sqrt(noise.shape[1])
            summed = noise + sources[self.heads[rows]] + sources[self.tails[rows]]
            drawn[rows] = summed / np.linalg.norm(summed, axis=1, keepdims=True)
        return drawn


def recombined(head: str, tail: str) -> str:
    """Return the first half of one text's words, and the second half of the other's."""
    first, second = head.split(), tail.split()
    return " ".join([*first[: (len(first) + 1) // 2], *second[len(second) // 2 :]])


def source_texts(source: Bundle) -> list[str]:
    """Return the texts of all keys of a bundle [S], in their order."""
    return [*source.instance_texts, *source.label_texts]


@dataclass(frozen=True, kw_only=True)
class Built:
    """A bundle, its number of keys, and the seconds for its vectors and for the rest of it.

    `index_cpu_seconds` is the CPU time of `index_seconds`, on all cores.
    """

    keys: int
    library: str
    folder: Path
    vector_seconds: float
    index_seconds: float
    index_cpu_seconds: float


def build(
    source: Bundle, folder: Path, *, keys: int, vectors: Vectors, library: str, seed: int
) -> Built:
    """Return the bundle `folder`/KEYS-VECTORS-LIBRARY-SEED; build it if it is missing."""
    target = folder / f"{keys}-{vectors}-{library}-{seed}"
    record = target.with_name(f"{target.name}.json")
    if not (target.exists() and record.exists()):
        sources = source_texts(source)
        start = perf_counter()
        if vectors == "own":
            drawn = np.sort(np.random.default_rng(seed).permutation(len(sources))[:keys])
            texts, rows = [sources[row] for row in drawn.tolist()], source.keys[drawn]
        else:
            texts, rows = _recombined_keys(source, sources, folder, keys, vectors, seed)
        written_at, cpu = perf_counter(), process_time()
        shutil.rmtree(target, ignore_errors=True)  # left by an unfinished run
        new = content(source, texts, rows, seed)
        new = replace(new, index=replace(new.index, library=library), parts=None)
        write_bundle(new, target, progress=_ignore)
        seconds = [written_at - start, perf_counter() - written_at, process_time() - cpu]
        write_file(record, orjson.dumps(seconds))
    times = dict(zip(TIMES, orjson.loads(record.read_bytes()), strict=True))
    return Built(keys=keys, library=library, folder=target, **times)


def _recombined_keys(
    source: Bundle, sources: Sequence[str], folder: Path, keys: int, vectors: Vectors, seed: int
) -> tuple[list[str], Halves]:
    """Return `keys` recombined texts, and their vectors [n, d]."""
    pairs = Pairs.drawn(keys, sources=len(sources), seed=seed)
    texts = pairs.texts(sources)
    if vectors == "drawn":
        return texts, pairs.vectors(source.keys[:], seed=seed)
    encoder = OnnxEncoder(source.folder, source.manifest.encoder)
    # Kept for the other libraries; an interrupted run resumes from here.
    work = folder / f".{keys}-{vectors}-{seed}"
    work.mkdir(parents=True, exist_ok=True)
    threads = os.cpu_count() or 1
    rows = encode_resumably(
        encoder, texts, role=Role.LABEL, work=work, threads=threads, progress=_ignore
    )
    return texts, rows


def content(source: Bundle, texts: Sequence[str], vectors: Halves, seed: int) -> BundleContent:
    """Instances first, then labels; an instance votes for labels at equal distances."""
    instances = len(texts) // INSTANCE_SHARE
    labels = len(texts) - instances
    votes = min(VOTES_PER_INSTANCE, labels)
    first = np.random.default_rng(seed).integers(labels, size=(instances, 1))
    columns = (first + np.arange(votes) * (labels // votes)) % labels  # [N, votes]
    return BundleContent.like(
        source,
        name=f"{source.manifest.name}-{len(texts)}",
        keys=vectors,
        indptr=np.arange(instances + 1) * votes,
        indices=columns.ravel().astype(np.int32),
        instance_texts=texts[:instances],
        label_ids=[f"label-{number}" for number in range(labels)],
        label_texts=texts[instances:],
        metrics={},
    )


def check_keys(keys: int) -> int:
    """Return the number of keys; raises `InvalidInput` if it is too small for both kinds."""
    least = 2 * INSTANCE_SHARE
    if keys < least:
        raise InvalidInput(f"sizes must be at least {least}, not {keys}", field="sizes")
    return keys


def _ignore(done: int) -> None:
    """Ignore the progress of a build."""


# Figures --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Search:
    """Searches of a bundle's index alone, in one thread, for the keys nearest to each query.

    `ef` is the shortest queue that reaches the bundle's recall goal. `cpu_ms` is the CPU time of a
    search: the median of three rounds over all queries.
    """

    queries: int
    depth: int
    ef: int
    recall: float
    cpu_ms: float


def measure_search(folder: Path, queries: Sequence[str]) -> Search:
    """Encode the queries, find the queue length, and measure the searches."""
    search_in_one_thread()
    bundle = open_bundle(folder)
    facts = bundle.manifest
    vectors = encode(OnnxEncoder(folder, facts.encoder), queries, role=Role.QUERY)
    goal, depth = facts.index.recall_goal, facts.predictor.depth
    chosen = smallest_ef(bundle.segment, bundle.keys, vectors, recall=goal, depth=depth)

    def seconds() -> float:
        start = thread_time()
        for place in range(len(vectors)):
            query = vectors[place : place + 1]
            bundle.segment.search(query, count=depth, ef=chosen.ef, row_filter=None)
        return thread_time() - start

    return Search(
        queries=len(vectors),
        depth=depth,
        ef=chosen.ef,
        recall=chosen.recall,
        cpu_ms=1000 * median(seconds() for _ in range(3)) / len(vectors),
    )


def bytes_per_key(built: Built) -> dict[str, float]:
    """Return the bytes of each folder and file of a bundle, by its number of keys."""
    files = open_bundle(built.folder, verify=False).manifest.files
    parts: dict[str, float] = defaultdict(float)
    for name, facts in files.items():
        parts[name.split("/")[0]] += facts.bytes / built.keys
    return dict(parts)


def measure(built: Built, queries: Sequence[str], load: Load, *, recall_queries: int) -> Row:
    """Serve a bundle and send queries that it does not contain; return the row of its figures."""
    # Use a separate thread: faiss sets its threads for the thread that searches, and this thread
    # builds the next bundle on all cores.
    with ThreadPoolExecutor(1) as thread:
        recall = thread.submit(_recall, built.folder, queries[:recall_queries]).result()
        search = thread.submit(measure_search, built.folder, queries).result()
    options = ["--no-access-log"]
    with running_server(built.folder, options=options, ready_seconds=READY_SECONDS) as server:
        asked = cycle(queries)
        warm_up(server, asked, seconds=load.seconds)
        outcome, used = with_cpu_time(server.pid, lambda: measure_predictions(server, asked, load))
        resident_mb = sum(resident(pid).total for pid in process_tree(server.pid))
    latency, cpu_ms = Summary.of(outcome.latencies), 1000 * used / len(outcome.late)
    sizes = bytes_per_key(built)
    return Row(
        what=f"{built.keys:,} keys, {built.library}",
        measured=f"p50 {latency.p50:.1f} ms, p99 {latency.p99:.1f} ms, CPU {cpu_ms:.1f} ms a"
        f" query; recall@{recall.depth} {recall.mean:.4f}; {resident_mb:.0f} MB resident; vectors"
        f" in {built.vector_seconds:.0f} s, bundle in {built.index_seconds:.0f} s"
        f" ({built.index_cpu_seconds:.0f} s CPU), ready in {server.seconds_to_ready:.1f} s; search"
        f" alone with ef {search.ef}: recall {search.recall:.4f}, CPU {search.cpu_ms:.2f} ms; index"
        f" {sizes['segments']:.0f} bytes a key{failures_text(outcome.failures)}",
        figures={
            "keys": built.keys,
            "library": built.library,
            "vector_seconds": built.vector_seconds,
            "index_seconds": built.index_seconds,
            "index_cpu_seconds": built.index_cpu_seconds,
            "ready_seconds": server.seconds_to_ready,
            "resident_mb": resident_mb,
            "bytes_per_key": sizes,
            "latency": latency,
            "cpu_ms": cpu_ms,
            "recall": recall,
            "search": search,
            "failures": outcome.failures,
        },
    )


def _recall(bundle: Path, queries: Sequence[str]) -> Recall:
    bare = BarePredictor.open(bundle)
    return recall_of_queries(bare.encoder, bare.view, queries)


if __name__ == "__main__":
    Scale.command()
