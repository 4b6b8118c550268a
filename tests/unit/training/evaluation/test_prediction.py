"""The offline prediction equals the served one, and the paper's equations hold by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from service.core.bundle.bundle import open_bundle
from service.core.index import hubs
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor, voting_kind
from service.core.types import PredictOptions, Role
from tests.support.tiny.bundles import LABELS, Catalogue, make_bundle
from tests.support.tiny.encoder import TrigramEncoder
from training.checkpoints.choices import UNCHOSEN
from training.datasets.pair_weights import vote_weights
from training.evaluation.prediction import OfflineMemory, predict, retrieve

QUERIES = ["running shoes", "tent lamp", "drinks", "boots for the trail", "x"]


@pytest.mark.parametrize("memorization", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("depth", [3, 20])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_ranks_as_the_serving_predictor(
    tmp_path: Path, memorization: float, depth: int, weighted: bool
) -> None:
    encoder = TrigramEncoder()
    rows = Catalogue().votes()
    relevance = [float(place + 1) if weighted else 1.0 for row in rows for place in range(len(row))]
    indptr = np.cumsum([0, *map(len, rows)])
    votes = csr_matrix((relevance, np.concatenate(rows), indptr), shape=(len(rows), len(LABELS)))
    weights = vote_weights(votes)
    assert (weights is not None) == weighted
    bundle = open_bundle(make_bundle(tmp_path / "bundle", encoder=encoder, vote_weights=weights))
    view = KnowledgeMemory(bundle).view
    options = PredictOptions(top_k=6, memorization=memorization, depth=depth, exact=True)
    answer = Predictor(encoder, tau=0.1).predict(view, QUERIES, options)

    uids = list(bundle.label_ids)
    keys = OfflineMemory(keys=np.asarray(bundle.keys), labels_of=votes, label_ids=uids)
    vectors = encoder.embed(encoder.tokenize(QUERIES, role=Role.QUERY))
    found = retrieve(keys, vectors, depth=20).voting(memorization, depth)
    ranked = predict(
        keys.values, found, tau=0.1, memorization=memorization, top_k=6, order=keys.label_order
    )

    for labels, scores, prediction in zip(
        ranked.labels, ranked.scores, answer.predictions, strict=True
    ):
        assert [
            (uids[column], score)
            for column, score in zip(labels, scores, strict=True)
            if column >= 0
        ] == [(keyword.id, keyword.score) for keyword in prediction.keywords]


@pytest.mark.parametrize("memorization", [0.0, 0.5, 1.0])
def test_hubs_come_as_late_as_when_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memorization: float
) -> None:
    monkeypatch.setattr(hubs, "NEAREST", 3)  # the catalogue has few known queries
    encoder, rows = TrigramEncoder(), Catalogue().votes()
    indptr = np.cumsum([0, *map(len, rows)])
    votes = csr_matrix(
        (np.ones(indptr[-1]), np.concatenate(rows), indptr), shape=(len(rows), len(LABELS))
    )
    plain = open_bundle(make_bundle(tmp_path / "plain", encoder=encoder))
    keys = OfflineMemory(
        keys=np.asarray(plain.keys), labels_of=votes, label_ids=list(plain.label_ids)
    )
    subtracted = hubs.penalties(hubs.hubness(keys.keys, instances=len(rows)), share=0.5)
    assert np.ptp(subtracted) > 0.05
    bundle = open_bundle(make_bundle(tmp_path / "bundle", encoder=encoder, hubs=subtracted))
    vectors = encoder.embed(encoder.tokenize(QUERIES, role=Role.QUERY))
    choices = replace(UNCHOSEN, tau=0.1, memorization=memorization, depth=20, hubs=0.5, words=None)

    found = retrieve(keys, vectors, depth=20).of_choices(choices)
    served = KnowledgeMemory(bundle).view.search(
        QUERIES, vectors, depth=20, kind=voting_kind(memorization), exact=True
    )

    width = np.count_nonzero(served[1][0] >= 0)
    assert found[1][:, :width].tolist() == served[1][:, :width].tolist()
    assert found[0][:, :width].tolist() == served[0][:, :width].tolist()


# In the plane, a query's similarities to two instances and two labels are .8, .6 and .6, 0.
KEYS = OfflineMemory(
    keys=np.array([[0.8, 0.6], [0.6, 0.8], [0.6, -0.8], [0.0, 1.0]], np.float16),
    labels_of=csr_matrix(np.array([[1, 0], [0, 1]])),
    label_ids=("a", "b"),
)
QUERY = np.array([[1.0, 0.0]], np.float32)


def test_two_searches_are_mixed_convexly() -> None:
    """Eq. 11: softmax(.8, .6) over instances and softmax(.6, 0) over labels, with tau = .2."""
    found = retrieve(KEYS, QUERY, depth=2)
    near, far = np.exp([4.0, 3.0]) / np.exp([4.0, 3.0]).sum()
    first, second = np.exp([3.0, 0.0]) / np.exp([3.0, 0.0]).sum()
    assert 0.5 * near + 0.5 * first > 0.5 * far + 0.5 * second

    how = {"tau": 0.2, "memorization": 0.5, "top_k": 3, "order": KEYS.label_order}
    ranked = predict(KEYS.values, found.instances, found.labels, **how)
    assert ranked.labels.tolist() == [[0, 1, -1]]
    # Keys are fp16, so the similarities are rounded.
    assert ranked.scores[0, 0] == pytest.approx(0.5 * near + 0.5 * first, abs=1e-3)


def test_equal_scores_stand_in_order_of_id() -> None:
    keys = OfflineMemory(
        keys=np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], np.float16),
        labels_of=csr_matrix(np.array([[1, 1]])),
        label_ids=("z", "a"),
    )
    found = retrieve(keys, QUERY, depth=1)
    ranked = predict(
        keys.values, found.both, tau=0.1, memorization=0.5, top_k=2, order=keys.label_order
    )
    assert ranked.labels.tolist() == [[1, 0]]
