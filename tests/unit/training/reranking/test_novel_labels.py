"""Trees learn from memories in which a share of the labels was just posted."""

from collections.abc import Iterator

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array

from service.core.prediction.reranking.candidate_labels import UNKNOWN
from training.checkpoints.choices import Choices
from training.evaluation.prediction import OfflineMemory, retrieve
from training.reranking import novel_labels
from training.reranking.novel_labels import as_posted, with_novel_labels
from training.reranking.queries import LabelsOfMemory, Queries

ROWS, LABELS = 300, 200


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def labels_of(rng: np.random.Generator) -> csr_matrix:
    drawn = random_array((ROWS, LABELS), density=0.03, rng=rng)
    return csr_matrix(drawn.astype(np.float32))


def test_votes_of_novel_labels_are_taken_away(
    labels_of: csr_matrix, rng: np.random.Generator
) -> None:
    novel = rng.random(LABELS) < 0.3
    posted = as_posted(labels_of, novel, rng)
    counts, before = ((of.tocsc() != 0).getnnz(axis=0) for of in (posted, labels_of))
    assert counts[~novel].tolist() == before[~novel].tolist()
    had = novel & (before > 0)
    assert set(counts[had].tolist()) == {0, 1}  # posted without a query, or with one
    assert 0.3 < counts[had].mean() < 0.7
    assert (posted != labels_of).multiply(posted != 0).nnz == 0  # what is left is as it was


def test_labels_without_rows_stay_without(rng: np.random.Generator) -> None:
    none = csr_matrix((ROWS, LABELS), dtype=np.float32)
    assert as_posted(none, np.ones(LABELS, bool), rng).nnz == 0


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(novel_labels, "SHARE", 0.5)
    yield


@pytest.mark.usefixtures("some")
def test_their_frequency_is_unknown_and_the_rest_stays(
    labels_of: csr_matrix, rng: np.random.Generator
) -> None:
    keys = rng.normal(size=(ROWS + LABELS, 8))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    memory = OfflineMemory(
        keys=keys.astype(np.float16),
        labels_of=labels_of,
        label_ids=[f"{column:03d}" for column in range(LABELS)],
    )
    vectors = keys[:2].astype(np.float32)
    queries = Queries(
        texts=["a red tent", "lamp"],
        vectors=vectors,
        choices=Choices(system="rae", tau=0.1, memorization=0.5, depth=6),
        labels=LabelsOfMemory(memory=memory, texts=["lamp"] * LABELS),
        retrieved=retrieve(memory, vectors, depth=6).voting(0.5, 6),
        positives=csr_matrix((2, LABELS)),
        filtered=csr_matrix((2, LABELS)),
    )
    posted, columns = with_novel_labels(queries, rng), np.arange(LABELS)
    novel = posted.labels.novel
    assert novel is not None and 0.3 < novel.mean() < 0.7
    frequencies = posted.labels.frequencies_of(columns)
    assert (frequencies[novel] == UNKNOWN).all()
    known = queries.labels.frequencies_of(columns)
    assert frequencies[~novel].tolist() == known[~novel].tolist()
    assert known.min() >= 0  # the memory that was given is as it was
    assert posted.retrieved is queries.retrieved and posted.texts == queries.texts
