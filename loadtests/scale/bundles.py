"""Bundles with any number of keys, from recombined texts; each is built once and reused.

A recombined text is the first half of one real text's words and the second half of another's. A
drawn vector is the sum of two real texts' unit vectors and noise, scaled to unit length. The same
seed draws the same.

Shapes: S source texts, n texts drawn, d dimensions.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from export.bundle.encode import encode_resumably
from loadtests.queries import read_queries
from service.core.bundle.bundle import ENCODER, TOKENIZER, Bundle, open_bundle
from service.core.bundle.content import BundleContent, write_bundle
from service.core.bundle.manifest import EncoderFacts
from service.core.encoding.encoder import OnnxEncoder
from service.core.errors import InvalidInput, MissingExtra
from service.core.files.atomic import write_file
from service.core.types import Floats, Halves, Role

INSTANCE_SHARE = 5  # one key in five is an instance, as on moby
VOTES_PER_INSTANCE = 10
NOISE = 0.5  # the noise's length; the two real vectors have length 1
_ROWS_AT_ONCE = 65_536

Vectors = Literal["encoded", "drawn"]


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The two source texts of each drawn text, [n] each."""

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
        """Return the drawn unit vectors [n, d], from those of the source texts [S, d]."""
        random = np.random.default_rng(seed)
        drawn = np.empty_like(sources, shape=(len(self.heads), sources.shape[1]))
        for start in range(0, len(drawn), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            noise = random.standard_normal(drawn[rows].shape, dtype=np.float32)
            noise *= NOISE / np.sqrt(noise.shape[1])
            summed = noise + sources[self.heads[rows]] + sources[self.tails[rows]]
            drawn[rows] = unit(summed)
        return drawn


def recombined(head: str, tail: str) -> str:
    """Return the first half of one text's words, and the second half of the other's."""
    first, second = head.split(), tail.split()
    return " ".join([*first[: (len(first) + 1) // 2], *second[len(second) // 2 :]])


def unit(vectors: Floats) -> Floats:
    """Scale vectors to length 1."""
    scaled: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


def cut_encoder(whole: Path, facts: EncoderFacts, cut: Path, *, dimensions: int) -> EncoderFacts:
    """Write an encoder that keeps the first `dimensions` dimensions into `cut`, at unit length.

    Returns its facts; `facts` are those of the encoder in the folder `whole`.

    Only an encoder trained for it keeps its quality; here it shows what shorter keys cost and save.
    Raises `InvalidInput` if there are too few dimensions, and `MissingExtra` without `onnx`.
    """
    if not 1 <= dimensions < facts.dimension:
        raise InvalidInput(
            f"dimensions must be 1 to {facts.dimension}, not {dimensions}",
            field="dimensions",
        )
    try:
        import onnx
        from onnx import helper, numpy_helper
    except ImportError as error:
        raise MissingExtra("onnx", extra="export") from error
    model = onnx.load(whole / ENCODER)
    [output] = model.graph.output
    name_of_whole = output.name
    bounds = {"cut_start": 0, "cut_end": dimensions, "cut_axis": 1}
    for name, value in bounds.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), name))
    model.graph.node.extend(
        [
            helper.make_node("Slice", [name_of_whole, *bounds], ["cut"]),
            helper.make_node("LpNormalization", ["cut"], ["cut_unit"], axis=1, p=2),
        ]
    )
    output.name = "cut_unit"
    output.type.tensor_type.shape.dim[-1].dim_value = dimensions
    cut.mkdir(parents=True, exist_ok=True)
    onnx.save(model, cut / ENCODER)
    shutil.copyfile(whole / TOKENIZER, cut / TOKENIZER)
    digest = hashlib.sha256(f"{facts.fingerprint}\0{dimensions}".encode()).hexdigest()
    return replace(facts, dimension=dimensions, fingerprint=digest)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Real texts [S] and their vectors [S, d]; all other settings come from `bundle`.

    `encoder` is the folder with `encoder.onnx` and `tokenizer.json`, `facts` are the encoder's.
    """

    bundle: Bundle
    encoder: Path
    facts: EncoderFacts
    texts: Sequence[str]
    vectors: Halves

    @classmethod
    def read(
        cls, bundle: Path, files: Sequence[Path], *, dimensions: int | None, work: Path
    ) -> Sources:
        """Read the texts of a bundle and of files. Encoding the files' texts can be resumed.

        Vectors keep their first `dimensions` dimensions; None keeps all.
        """
        opened = open_bundle(bundle)
        encoder, facts = opened.folder, opened.manifest.encoder
        texts, vectors = [*opened.instance_texts, *opened.label_texts], [np.asarray(opened.keys)]
        for number, file in enumerate(files):
            read = read_queries(bundle, file)
            opened_encoder = OnnxEncoder(encoder, facts)
            vectors.append(encoded(opened_encoder, read, work=work / f"file-{number}"))
            texts += read
        whole = np.concatenate(vectors)
        if dimensions is not None and dimensions != facts.dimension:
            cut = work / f"encoder-{dimensions}"
            encoder, facts = cut, cut_encoder(encoder, facts, cut, dimensions=dimensions)
            whole = unit(whole[:, :dimensions].astype(np.float32)).astype(np.float16)
        return cls(bundle=opened, encoder=encoder, facts=facts, texts=texts, vectors=whole)


@dataclass(frozen=True, kw_only=True)
class Built:
    """A bundle, its number of keys, and the seconds for its vectors and its index."""

    keys: int
    folder: Path
    vector_seconds: float
    index_seconds: float


def build(sources: Sources, folder: Path, *, keys: int, vectors: Vectors, seed: int) -> Built:
    """Return the bundle `folder`/KEYS-VECTORS-DIMENSIONS-SEED; build it if it is missing."""
    target = folder / f"{keys}-{vectors}-{sources.facts.dimension}-{seed}"
    record = target.with_name(f"{target.name}.json")
    if not (target.exists() and record.exists()):
        pairs = Pairs.drawn(check_keys(keys), sources=len(sources.texts), seed=seed)
        texts = pairs.texts(sources.texts)
        start = perf_counter()
        if vectors == "encoded":
            encoder = OnnxEncoder(sources.encoder, sources.facts)
            rows = encoded(encoder, texts, work=target.with_name(f".{target.name}"))
        else:
            rows = pairs.vectors(sources.vectors, seed=seed)
        encoded_at = perf_counter()
        shutil.rmtree(target, ignore_errors=True)  # left by an unfinished run
        write_bundle(content(sources, texts, rows, seed), target, progress=_ignore)
        write_file(record, orjson.dumps([encoded_at - start, perf_counter() - encoded_at]))
    vector_seconds, index_seconds = orjson.loads(record.read_bytes())
    return Built(
        keys=keys, folder=target, vector_seconds=vector_seconds, index_seconds=index_seconds
    )


def encoded(encoder: OnnxEncoder, texts: Sequence[str], *, work: Path) -> Halves:
    """Return unit vectors [n, d] by an encoder; an interrupted call resumes from `work`."""
    work.mkdir(parents=True, exist_ok=True)
    return encode_resumably(
        encoder,
        texts,
        role=Role.LABEL,
        work=work,
        threads=os.cpu_count() or 1,
        progress=_ignore,
    )


def content(sources: Sources, texts: Sequence[str], vectors: Halves, seed: int) -> BundleContent:
    """Instances first, then labels; an instance votes for labels at equal distances."""
    instances = len(texts) // INSTANCE_SHARE
    labels, facts = len(texts) - instances, sources.bundle.manifest
    votes = min(VOTES_PER_INSTANCE, labels)
    first = np.random.default_rng(seed).integers(labels, size=(instances, 1))
    columns = (first + np.arange(votes) * (labels // votes)) % labels  # [N, votes]
    return BundleContent(
        name=f"{facts.name}-{len(texts)}",
        dataset=f"recombined {facts.dataset}",
        encoder=sources.facts,
        encoder_onnx=sources.encoder / ENCODER,
        tokenizer_json=sources.encoder / TOKENIZER,
        keys=vectors,
        indptr=np.arange(instances + 1) * votes,
        indices=columns.ravel().astype(np.int32),
        instance_texts=texts[:instances],
        label_ids=[f"label-{number}" for number in range(labels)],
        label_texts=texts[instances:],
        predictor=facts.predictor,
        index=facts.index.parameters(),
        metrics={},
    )


def check_keys(keys: int) -> int:
    """Return the number of keys; raises `InvalidInput` if it is too small for both kinds."""
    if keys < 2 * INSTANCE_SHARE:
        raise InvalidInput(
            f"sizes must be at least {2 * INSTANCE_SHARE}, not {keys}", field="sizes"
        )
    return keys


def _ignore(done: int) -> None:
    """Ignore the progress of a build."""
