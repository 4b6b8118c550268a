"""Parity: how far an exported graph's vectors differ from torch's, on a sample of texts.

An encoder that differs by more than the tolerance is not written.

Shapes: n queries, k keys, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.core.encoding.encoder import Encoder, encode_all, full_length_text
from service.core.errors import InvalidInput, ParityError
from service.core.types import Floats, Role
from training.datasets.dataset import Dataset
from training.models.torch_encoder import TorchEncoder

TOP = 10
SAME = 1e-6  # components of two vectors that differ by less are equal


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The largest allowed differences of an exported graph from torch.

    `component` limits each component of an fp32 vector, also for texts cut at the token limit. The
    others limit the quantized graph: the minimum mean `cosine` to torch's vectors, the minimum mean
    `overlap` of the top-10 keys, and the maximum loss of P@1 in percentage points (`precision`).
    """

    component: float = 1e-4
    cosine: float = 0.98
    overlap: float = 0.80
    precision: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Test queries, label texts as keys, and the positions of each query's labels in `keys`."""

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
        ours, theirs = self.precision, self.torch_precision
        for within, difference in (
            (self.component <= tolerance.component, f"fp32 component by {self.component:.2e}"),
            (self.cosine >= tolerance.cosine, f"mean cosine {self.cosine:.4f}"),
            (self.overlap >= tolerance.overlap, f"top-{TOP} overlap {self.overlap:.3f}"),
            (theirs - ours <= tolerance.precision, f"P@1 {ours:.2f} against {theirs:.2f}"),
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


def draw_sample(dataset: Dataset, *, size: int, seed: int = 0) -> Sample:
    """Draw `size` / 4 labeled test queries, their labels, and other labels up to `size`.

    The queries' labels are at most half of the keys. Without a test split, training queries are
    drawn. Raises `InvalidInput` if no test query has a label.
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


def _require_several(vectors: Floats, texts: Sequence[str], *, role: Role) -> None:
    """Raise `InvalidInput` if different texts of a role all have one vector [n, d].

    Parity does not notice it: the exported graph then gives the same vector.
    """
    if len(set(texts)) > 1 and np.abs(vectors - vectors[0]).max() < SAME:
        raise InvalidInput(
            f"the encoder gives all {len(texts):,} texts of a {role.value} in the sample the same"
            f" vector; look at its prompt for a {role.value} and its token limit"
        )


def measure(
    sample: Sample, *, reference: TorchEncoder, fp32: Encoder, exported: Encoder, threads: int
) -> Parity:
    """Encode the sample with torch, the fp32 graph and the exported graph, and compare vectors."""
    by_torch: list[Floats] = []
    by_export: list[Floats] = []
    differences: list[Floats] = []
    for role, texts in ((Role.QUERY, sample.queries), (Role.LABEL, sample.keys)):
        by_torch.append(reference.encode(texts, role=role))  # [n, d], then [k, d]
        _require_several(by_torch[-1], texts, role=role)
        by_export.append(encode_all(exported, texts, role=role, threads=threads))
        differences.append(encode_all(fp32, texts, role=role, threads=threads) - by_torch[-1])
        long = [full_length_text(reference.max_tokens, words=texts)]
        ours = encode_all(fp32, long, role=role, threads=threads)
        differences.append(ours - reference.encode(long, role=role))
    torch_best, best = best_keys(*by_torch), best_keys(*by_export)
    cosines = np.sum(np.concatenate(by_torch) * np.concatenate(by_export), axis=1)
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


def best_keys(queries: Floats, keys: Floats) -> np.ndarray:
    """Return the `TOP` nearest keys of each query, [n, min(TOP, k)]."""
    return np.argsort(-(queries @ keys.T), axis=1, kind="stable")[:, :TOP]


def precision_at_1(best: np.ndarray, positives: Sequence[frozenset[int]]) -> float:
    """Return the share of queries whose best key is one of its positives, in percent."""
    hits = [first in labels for first, labels in zip(best[:, 0].tolist(), positives, strict=True)]
    return 100.0 * float(np.mean(hits))
