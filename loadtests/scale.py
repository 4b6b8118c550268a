"""`python -m loadtests.scale`: latency, memory, start and build time by number of keys and library.

The bundles of all sizes are kept in OUT/bundles, so an interrupted run continues. Writes scale.json
and scale.md.

Shapes: S texts of the bundle, n texts drawn, d dimensions.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from time import perf_counter, process_time
from typing import Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from loadtests.harness import option, say
from loadtests.latency import Latency
from loadtests.report import Row
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.content import BundleContent, write_bundle
from service.core.errors import InvalidInput
from service.core.files.atomic import write_file
from service.core.types import Halves

QUERIES = 20_000  # without repetition, so that none is cached
INSTANCE_SHARE = 5  # one key in five is an instance, as on moby
VOTES_PER_INSTANCE = 10
NOISE = 0.5  # the noise's length; the two real vectors have length 1
_ROWS_AT_ONCE = 65_536

Vectors = Literal["drawn", "own"]


@dataclass(frozen=True, kw_only=True)
class Scale(Latency):
    """Bundles of several sizes and libraries, built from a bundle's texts, encoder and settings.

    Each is measured as by `loadtests.latency`, with queries that it does not contain.
    """

    title = "Growth with the number of keys"

    sizes: tuple[int, ...] = option("Numbers of keys.", (130_000, 1_000_000, 5_000_000))
    libraries: tuple[str, ...] = option(
        "Index libraries, as of `export bundle --library`. Default: the bundle's.", ()
    )
    vectors: Vectors = option(
        "drawn: the sum of two real texts' vectors and noise. own: the bundle's own texts and keys;"
        " sizes are at most its number of keys.",
        "drawn",
    )
    rate: float = option("Predictions per second in the open loops.", 40.0)
    seconds: float = option("Length of each measurement; there are four for each bundle.", 20.0)
    recall_queries: int = option("Queries whose recall is measured against an exact scan.", 200)

    def rows(self) -> Iterator[Row]:
        """Build and measure each bundle."""
        source = open_bundle(self.bundle)
        texts, least = source_texts(source), 2 * INSTANCE_SHARE
        if min(self.sizes) < least or (self.vectors == "own" and max(self.sizes) > len(texts)):
            most = f", and at most {len(texts)}" if self.vectors == "own" else ""
            raise InvalidInput(f"sizes must be at least {least}{most}", field="sizes")
        queries = Pairs.drawn(QUERIES, sources=len(texts), seed=self.seed + 1).texts(texts)
        unseen = self.out / "bundles" / "queries.txt"
        unseen.parent.mkdir(parents=True, exist_ok=True)
        unseen.write_text("\n".join(queries))
        for keys, library in product(
            sorted(self.sizes), self.libraries or [source.manifest.index.library]
        ):
            say(f"{keys:,} keys, {library} ...")
            folder, vectors = unseen.parent, self.vectors
            built = build(
                source, folder, keys=keys, vectors=vectors, library=library, seed=self.seed
            )
            what = f"{keys:,} keys, {library}"
            seconds = f"{built.seconds:.0f} s, {built.cpu_seconds:.0f} s of CPU time"
            yield Row(what=f"{what}: built in", measured=seconds, figures={"keys": keys})
            # Use a separate thread: faiss sets its threads for the thread that searches, and this
            # thread builds the next bundle on all cores.
            with ThreadPoolExecutor(1) as thread:
                size = replace(self, bundle=built.folder, unseen=unseen)
                for row in thread.submit(list, super(Scale, size).rows()).result():
                    yield replace(row, what=f"{what}: {row.what}")

    def queries(self) -> Iterator[str]:
        """Return queries that the bundle does not contain."""
        return self.texts(self.unseen)


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
    """A bundle, its number of keys, and the time it took; CPU time is that of all cores."""

    keys: int
    library: str
    folder: Path
    seconds: float
    cpu_seconds: float


def build(
    source: Bundle, folder: Path, *, keys: int, vectors: Vectors, library: str, seed: int
) -> Built:
    """Return the bundle `folder`/KEYS-VECTORS-LIBRARY-SEED; build it if it is missing."""
    target = folder / f"{keys}-{vectors}-{library}-{seed}"
    record = target.with_name(f"{target.name}.json")
    if not (target.exists() and record.exists()):
        sources = source_texts(source)
        start, cpu = perf_counter(), process_time()
        if vectors == "own":
            drawn = np.sort(np.random.default_rng(seed).permutation(len(sources))[:keys])
            texts, rows = [sources[row] for row in drawn.tolist()], source.keys[drawn]
        else:
            pairs = Pairs.drawn(keys, sources=len(sources), seed=seed)
            texts, rows = pairs.texts(sources), pairs.vectors(source.keys[:], seed=seed)
        shutil.rmtree(target, ignore_errors=True)  # left by an unfinished run
        new = content(source, texts, rows, seed)
        new = replace(new, index=replace(new.index, library=library), parts=None)
        write_bundle(new, target, progress=lambda done: None)
        write_file(record, orjson.dumps([perf_counter() - start, process_time() - cpu]))
    seconds, cpu_seconds = orjson.loads(record.read_bytes())
    return Built(
        keys=keys, library=library, folder=target, seconds=seconds, cpu_seconds=cpu_seconds
    )


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


if __name__ == "__main__":
    Scale.command()
