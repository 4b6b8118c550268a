"""Bundles of any number of keys, from recombined texts; each is built once and used again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np
import orjson

from export.bundle.encode import encode_resumably
from loadtests.queries import read_queries
from loadtests.scale.encoder_files import EncoderFiles, cut_encoder
from loadtests.scale.recombined import Pairs, unit
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.content import BundleContent, write_bundle
from service.core.errors import InvalidInput
from service.core.files.atomic import write_file
from service.core.types import Halves, Role

INSTANCE_SHARE = 5  # one key in so many is an instance, as on moby
VOTES_PER_INSTANCE = 10

Vectors = Literal["encoded", "drawn"]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Real texts [S], and their vectors [S, d] by `encoder`; `bundle` has all other settings."""

    bundle: Bundle
    encoder: EncoderFiles
    texts: Sequence[str]
    vectors: Halves

    @classmethod
    def read(
        cls, bundle: Path, files: Sequence[Path], *, dimensions: int | None, work: Path
    ) -> Sources:
        """The texts of a bundle and of files; those of files are encoded, which can be resumed.

        Vectors keep their first `dimensions` dimensions, None: all.
        """
        opened = open_bundle(bundle)
        encoder = EncoderFiles.of(opened)
        texts, vectors = [*opened.instance_texts, *opened.label_texts], [np.asarray(opened.keys)]
        for number, file in enumerate(files):
            read = read_queries(bundle, file)
            vectors.append(encoded(encoder, read, work=work / f"file-{number}"))
            texts += read
        whole = np.concatenate(vectors)
        if dimensions is not None and dimensions != encoder.facts.dimension:
            encoder = cut_encoder(encoder, work / f"encoder-{dimensions}", dimensions=dimensions)
            whole = unit(whole[:, :dimensions].astype(np.float32)).astype(np.float16)
        return cls(bundle=opened, encoder=encoder, texts=texts, vectors=whole)

    def described(self) -> dict[str, int]:
        """The figures for a report."""
        return {"sources": len(self.texts), "dimensions": self.encoder.facts.dimension}


@dataclass(frozen=True, kw_only=True)
class Built:
    """A bundle of so many keys, and the seconds that its vectors and its index took."""

    keys: int
    folder: Path
    vector_seconds: float
    index_seconds: float


def build(sources: Sources, folder: Path, *, keys: int, vectors: Vectors, seed: int) -> Built:
    """The bundle `folder`/KEYS-VECTORS-DIMENSIONS-SEED, built unless it is there."""
    dimension = sources.encoder.facts.dimension
    target = folder / f"{keys}-{vectors}-{dimension}-{seed}"
    record = target.with_name(f"{target.name}.json")
    if not (target.exists() and record.exists()):
        pairs = Pairs.drawn(check_keys(keys), sources=len(sources.texts), seed=seed)
        texts = pairs.texts(sources.texts)
        start = perf_counter()
        if vectors == "encoded":
            rows = encoded(sources.encoder, texts, work=target.with_name(f".{target.name}"))
        else:
            rows = pairs.vectors(sources.vectors, seed=seed)
        encoded_at = perf_counter()
        shutil.rmtree(target, ignore_errors=True)  # of a run that ended before it was recorded
        write_bundle(content(sources, texts, rows, seed), target, progress=_ignore)
        write_file(record, orjson.dumps([encoded_at - start, perf_counter() - encoded_at]))
    vector_seconds, index_seconds = orjson.loads(record.read_bytes())
    return Built(
        keys=keys, folder=target, vector_seconds=vector_seconds, index_seconds=index_seconds
    )


def encoded(encoder: EncoderFiles, texts: Sequence[str], *, work: Path) -> Halves:
    """Unit vectors [n, d] by an encoder; the folder `work` lets it be resumed."""
    work.mkdir(parents=True, exist_ok=True)
    return encode_resumably(
        encoder.open(),
        texts,
        role=Role.LABEL,
        work=work,
        threads=os.cpu_count() or 1,
        progress=_ignore,
    )


def content(sources: Sources, texts: Sequence[str], vectors: Halves, seed: int) -> BundleContent:
    """Instances first, then labels; each instance votes for labels that lie equally far apart."""
    instances = len(texts) // INSTANCE_SHARE
    labels, facts = len(texts) - instances, sources.bundle.manifest
    votes = min(VOTES_PER_INSTANCE, labels)
    first = np.random.default_rng(seed).integers(labels, size=(instances, 1))
    columns = (first + np.arange(votes) * (labels // votes)) % labels  # [N, votes]
    return BundleContent(
        name=f"{facts.name}-{len(texts)}",
        dataset=f"recombined {facts.dataset}",
        encoder=sources.encoder.facts,
        encoder_onnx=sources.encoder.graph,
        tokenizer_json=sources.encoder.tokenizer,
        keys=vectors,
        indptr=np.arange(instances + 1) * votes,
        indices=columns.ravel().astype(np.int32),
        instance_texts=texts[:instances],
        label_ids=[f"label-{number}" for number in range(labels)],
        label_texts=texts[instances:],
        predictor=facts.predictor,
        index=facts.index.parameters(),
        metrics={},
        query_encoder=sources.encoder.query_encoder,
    )


def check_keys(keys: int) -> int:
    """The number of keys; `InvalidInput` if there can be no instance and no label."""
    if keys < 2 * INSTANCE_SHARE:
        raise InvalidInput(
            f"sizes must be at least {2 * INSTANCE_SHARE}, not {keys}", field="sizes"
        )
    return keys


def _ignore(done: int) -> None:
    """Progress of a build, which no one watches."""
