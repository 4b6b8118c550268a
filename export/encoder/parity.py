"""Parity: how far the vectors of an exported graph differ from torch's, on a sample of texts.

An encoder that differs by more than the tolerance is not written.

Shapes: n queries, k keys, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.core.encoding.encoder import Encoder, encode_all
from service.core.errors import InvalidInput, ParityError
from service.core.types import Floats, Role
from training.datasets.dataset import Dataset
from training.models.torch_encoder import TorchEncoder

TOP = 10


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far an exported graph may differ from torch.

    `component` is the maximum difference of any component of an fp32 vector. The others concern
    the exported (quantized) graph: `cosine` is the minimum mean cosine of its vectors to torch's,
    `overlap` the minimum mean overlap of the top-10 keys, and `precision` the maximum loss of P@1
    on the sample, in percentage points. `query_precision` is the maximum loss of P@1 by a query
    encoder against the encoder of the keys, both exported.
    """

    component: float = 1e-4
    cosine: float = 0.98
    overlap: float = 0.80
    precision: float = 2.0
    query_precision: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Test queries, labels as keys, and for each query the positions of its labels in `keys`."""

    queries: Sequence[str]
    keys: Sequence[str]
    positives: Sequence[frozenset[int]]


@dataclass(frozen=True, kw_only=True)
class Parity:
    """The differences measured on a sample; see `Tolerance`. Precisions are in percent."""

    component: float
    cosine: float
    overlap: float
    torch_precision: float
    precision: float

    def check(self, tolerance: Tolerance) -> None:
        """Raise `ParityError`, naming the first measure that is out of tolerance."""
        for within, difference in (
            (self.component <= tolerance.component, f"fp32 component by {self.component:.2e}"),
            (self.cosine >= tolerance.cosine, f"mean cosine {self.cosine:.4f}"),
            (self.overlap >= tolerance.overlap, f"top-{TOP} overlap {self.overlap:.3f}"),
            (
                self.torch_precision - self.precision <= tolerance.precision,
                f"P@1 {self.precision:.2f} against {self.torch_precision:.2f}",
            ),
        ):
            if not within:
                raise ParityError(
                    f"the exported encoder differs from torch: {difference}; allowed is {tolerance}"
                )

    def as_metrics(self) -> dict[str, float]:
        """Return the metrics for the manifest; P@1 and overlap are in percent."""
        return {
            "parity.fp32_max_component": self.component,
            "parity.cosine_mean": self.cosine,
            "parity.top10_overlap": 100 * self.overlap,
            "parity.sample_P@1_torch": self.torch_precision,
            "parity.sample_P@1": self.precision,
        }


@dataclass(frozen=True, kw_only=True)
class QueryParity:
    """A query encoder against the encoder of the keys, on a sample.

    `cosine` is the mean cosine of both vectors of a query. The precisions, in percent, are those of
    the queries' vectors by either encoder among the same keys.
    """

    cosine: float
    key_encoder_precision: float
    precision: float

    def check(self, tolerance: Tolerance) -> None:
        """Raise `ParityError` if the query encoder loses too much of P@1."""
        lost = self.key_encoder_precision - self.precision
        if lost > tolerance.query_precision:
            raise ParityError(
                f"the query encoder loses {lost:.2f} points of P@1 on the sample:"
                f" {self.precision:.2f} against {self.key_encoder_precision:.2f};"
                f" allowed are {tolerance.query_precision:g} (--max-query-drop)"
            )

    def as_metrics(self) -> dict[str, float]:
        """Return the metrics for the manifest; P@1 is in percent."""
        return {
            "query_encoder.cosine_mean": self.cosine,
            "query_encoder.sample_P@1_key_encoder": self.key_encoder_precision,
            "query_encoder.sample_P@1": self.precision,
        }


def draw_sample(dataset: Dataset, *, size: int, seed: int = 0) -> Sample:
    """Draw `size` / 4 labelled test queries, their labels, and other labels up to `size`.

    The queries' labels take at most half of the places. A data set without a test split gives
    training queries. Raises `InvalidInput` where no test query has a label.
    """
    rng, split = np.random.default_rng(seed), dataset.test if len(dataset.test) else dataset.train
    labelled = np.flatnonzero(np.diff(split.labels_of.indptr))
    if len(labelled) == 0:
        raise InvalidInput(f"data set {dataset.name} has no labelled test row to check parity with")
    rows = rng.permutation(labelled)[: max(1, size // 4)]
    positives = [split.labels_of[row].indices for row in rows]
    labels_of_rows = rng.permutation(np.unique(np.concatenate([np.zeros(0, np.int64), *positives])))
    others = rng.permutation(len(dataset.labels.texts))
    chosen = [*labels_of_rows[: size // 2].tolist(), *others.tolist()]
    columns = list(dict.fromkeys(chosen))[:size]
    place = {column: position for position, column in enumerate(columns)}
    return Sample(
        queries=[split.instances.texts[row] for row in rows],
        keys=[dataset.labels.texts[column] for column in columns],
        positives=[
            frozenset(place[column] for column in columns_of.tolist() if column in place)
            for columns_of in positives
        ],
    )


def measure(
    sample: Sample, *, reference: TorchEncoder, fp32: Encoder, exported: Encoder, threads: int
) -> Parity:
    """Encode the sample with torch, the fp32 graph and the exported graph, and compare vectors."""
    torch_queries = reference.encode(sample.queries, role=Role.QUERY)  # [n, d]
    torch_keys = reference.encode(sample.keys, role=Role.LABEL)  # [k, d]
    fp32_queries = encode_all(fp32, sample.queries, role=Role.QUERY, threads=threads)
    fp32_keys = encode_all(fp32, sample.keys, role=Role.LABEL, threads=threads)
    queries = encode_all(exported, sample.queries, role=Role.QUERY, threads=threads)
    keys = encode_all(exported, sample.keys, role=Role.LABEL, threads=threads)
    differences = [fp32_queries - torch_queries, fp32_keys - torch_keys]
    torch_best = best_keys(torch_queries, torch_keys)
    best = best_keys(queries, keys)
    cosines = np.concatenate(
        [np.sum(torch_queries * queries, axis=1), np.sum(torch_keys * keys, axis=1)]
    )
    overlaps = [
        len(set(exported_top) & set(torch_top)) / len(torch_top)
        for exported_top, torch_top in zip(best.tolist(), torch_best.tolist(), strict=True)
    ]
    return Parity(
        component=float(np.abs(np.concatenate(differences)).max()),
        cosine=float(cosines.mean()),
        overlap=float(np.mean(overlaps)),
        torch_precision=precision_at_1(torch_best, sample.positives),
        precision=precision_at_1(best, sample.positives),
    )


def compare_query_encoder(
    sample: Sample, *, encoder: Encoder, query_encoder: Encoder, threads: int
) -> QueryParity:
    """Encode the sample's queries with both encoders, its keys with `encoder`, and compare."""
    keys = encode_all(encoder, sample.keys, role=Role.LABEL, threads=threads)  # [k, d]
    theirs = encode_all(encoder, sample.queries, role=Role.QUERY, threads=threads)  # [n, d]
    ours = encode_all(query_encoder, sample.queries, role=Role.QUERY, threads=threads)
    return QueryParity(
        cosine=float(np.sum(theirs * ours, axis=1).mean()),
        key_encoder_precision=precision_at_1(best_keys(theirs, keys), sample.positives),
        precision=precision_at_1(best_keys(ours, keys), sample.positives),
    )


def best_keys(queries: Floats, keys: Floats) -> np.ndarray:
    """Return the `TOP` nearest keys of each query, [n, min(TOP, k)]."""
    return np.argsort(-(queries @ keys.T), axis=1, kind="stable")[:, :TOP]


def precision_at_1(best: np.ndarray, positives: Sequence[frozenset[int]]) -> float:
    """Return the share of queries whose best key is one of its positives, in percent."""
    hits = [first in labels for first, labels in zip(best[:, 0].tolist(), positives, strict=True)]
    return 100.0 * float(np.mean(hits))
