"""The reranker's scores are probabilities; labels behind the candidates keep their order."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.errors import BundleAltered, BundleUnsupported, NotInBundle
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.options import complete_options
from service.core.prediction.predictor import Predictor
from service.core.prediction.reranking.features import FEATURES, LabelsOfView, trained_frequencies
from service.core.prediction.reranking.reranker import (
    OnnxTrees,
    Reranker,
    continued,
    open_reranker,
    probabilities,
)
from service.core.prediction.reranking.text_overlap import WordRarity
from service.core.types import NewLabel, Prediction, PredictOptions
from tests.support.changes import ENCODER, click, delete, put, seal
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.encoder import write_tiny_encoder
from tests.support.tiny.reranker import SumOfFeatures, write_trees

QUERIES = ("a tent for two", "winter trail boots", "paddle", "")
CANDIDATES = 4


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles") / "reranked"
    return open_bundle(make_bundle(folder, encoder=ENCODER, reranked=CANDIDATES))


@pytest.fixture
def view(bundle: Bundle) -> View:
    return KnowledgeMemory(bundle).view


def predictor_of(bundle: Bundle) -> Predictor:
    return Predictor(ENCODER, tau=0.1, reranker=open_reranker(bundle))


def reranker_of(bundle: Bundle, **facts: object) -> Reranker:
    """A reranker whose trees return the sum of all features; `facts` replace the bundle's."""
    assert bundle.reranker is not None
    return Reranker(
        replace(bundle.reranker.facts, **facts),
        trees=SumOfFeatures(),
        rarity=WordRarity.among([]),
        trained=trained_frequencies(bundle),
    )


def ask(view: View, **options: object) -> tuple[Prediction, ...]:
    asked = PredictOptions(top_k=6, depth=50, exact=True, candidates=CANDIDATES)
    predictor = predictor_of(view.bundle)
    return predictor.predict(view, QUERIES, replace(asked, **options)).predictions


def order(predictions: tuple[Prediction, ...]) -> list[list[str]]:
    return [[keyword.id for keyword in one.keywords] for one in predictions]


# Scores ---------------------------------------------------------------------------------------


def test_sums_become_probabilities() -> None:
    found = probabilities(np.array([-1_000.0, 0.0, 1_000.0]), slope=2.0, intercept=1.0)
    assert found == pytest.approx([0.0, 1 / (1 + np.exp(-1.0)), 1.0])


def test_labels_behind_the_candidates_keep_their_ratios() -> None:
    votes = np.array([0.5, 0.4, 0.2, 0.1])
    assert continued(np.array([0.3, 0.9]), votes).tolist() == pytest.approx([0.3, 0.9, 0.15, 0.075])
    assert continued(np.array([0.3, 0.9, 0.1, 0.2]), votes).tolist() == [0.3, 0.9, 0.1, 0.2]
    nothing = continued(np.array([0.5]), np.array([0.0, 0.0]))
    assert nothing.tolist() == [0.5, 0.0]


# Answers --------------------------------------------------------------------------------------


def test_the_order_is_that_of_the_trees(view: View) -> None:
    first, second = ask(view, candidates=0), ask(view)
    assert order(first) != order(second)
    for by_votes, again in zip(first, second, strict=True):
        scores = [keyword.score for keyword in again.keywords]
        assert scores == sorted(scores, reverse=True) and all(0 <= one <= 1 for one in scores)
        # The candidates are the same labels with the same votes; the other labels keep their order.
        best, candidates = by_votes.keywords[:CANDIDATES], again.keywords[:CANDIDATES]
        assert {k.id: k.score for k in best} == {k.id: k.votes for k in candidates}
        assert all(keyword.votes is None for keyword in best)
        assert [k.id for k in by_votes.keywords[CANDIDATES:]] == [
            k.id for k in again.keywords[CANDIDATES:]
        ]


def test_fewer_keywords_are_the_first_of_more_and_evidence_adds_up_to_the_votes(
    view: View,
) -> None:
    more = ask(view, explain=True)
    for top_k in (1, 3):
        assert order(ask(view, top_k=top_k)) == [ids[:top_k] for ids in order(more)]
    for keyword in (keyword for prediction in more for keyword in prediction.keywords):
        assert sum(row.weight for row in keyword.evidence) == pytest.approx(keyword.votes)


def test_no_key_no_label(bundle: Bundle) -> None:
    memory = KnowledgeMemory(bundle)
    memory.apply([delete(n, label_id) for n, label_id in enumerate(list(bundle.label_ids), 1)])
    assert order(ask(memory.view)) == [[]] * len(QUERIES)


def test_equal_scores_are_in_order_of_the_id(bundle: Bundle, view: View) -> None:
    reranker = reranker_of(bundle, slope=1e-300)  # all probabilities are equal
    options = PredictOptions(depth=50, candidates=CANDIDATES, top_k=CANDIDATES)
    answer = Predictor(ENCODER, tau=0.1, reranker=reranker).predict(view, QUERIES, options)
    for ids in order(answer.predictions):
        assert ids == sorted(ids)


def test_its_time_is_a_stage_of_its_own(bundle: Bundle, view: View) -> None:
    predictor = predictor_of(bundle)
    seconds = predictor.predict(view, QUERIES, PredictOptions(candidates=2)).seconds
    assert seconds["rerank"] > 0.0 and seconds["score"] > 0.0
    assert "rerank" not in predictor.predict(view, QUERIES, PredictOptions()).seconds


def test_other_features_than_this_version_has(bundle: Bundle) -> None:
    with pytest.raises(BundleUnsupported, match="moon phase"):
        reranker_of(bundle, features=[*FEATURES, "moon phase"])
    with pytest.raises(BundleUnsupported, match="their order"):
        reranker_of(bundle, features=[*FEATURES[1:], FEATURES[0]])


def test_a_request_chooses_whether_to_rerank(bundle: Bundle, trigram_bundle: Bundle) -> None:
    def candidates(opened: Bundle, *choices: bool | None) -> list[int]:
        options = [complete_options(opened.manifest, rerank=choice) for choice in choices]
        return [option.candidates for option in options]

    assert candidates(bundle, None, True, False) == [CANDIDATES, CANDIDATES, 0]
    assert candidates(trigram_bundle, None, False) == [0, 0]
    with pytest.raises(NotInBundle, match="no second ranking"):
        candidates(trigram_bundle, True)


# Learning -------------------------------------------------------------------------------------


def test_posted_labels_and_clicks_are_read_and_snapshots_answer_alike(
    bundle: Bundle, tmp_path: Path
) -> None:
    memory = KnowledgeMemory(bundle, MemoryLimits(seal_rows=3, fan_out=2))
    memory.apply(
        [
            put(1, NewLabel(id="kayak", text="sea kayak", queries=("paddle", "boat for one"))),
            put(2, NewLabel(id="tent", text="dome tent", queries=("igloo",))),
            click(3, "rowing", "kayak", "bottle"),
            put(4, NewLabel(id="kayak", text="river kayak", queries=("paddle",))),
        ]
    )
    seal(memory, tmp_path)
    memory.apply([click(5, "paddle on the river", "kayak"), delete(6, "boots")])
    before = ask(memory.view)
    assert any("kayak" in ids for ids in order(before))

    write_snapshot(memory.view, tmp_path / "snapshot", name="snapshot", log="0f" * 16)
    opened = open_bundle(tmp_path / "snapshot")
    assert opened.reranker is not None and bundle.reranker is not None
    assert opened.reranker.facts == bundle.reranker.facts
    after = ask(KnowledgeMemory(opened, version=6).view)
    assert order(after) == order(before)
    for one, other in zip(before, after, strict=True):
        assert [k.score for k in one.keywords] == pytest.approx([k.score for k in other.keywords])


def frequency(view: View, label_id: str) -> int:
    labels = LabelsOfView(view=view, trained=trained_frequencies(view.bundle))
    return int(labels.frequencies_of(np.array([view.labels.column(label_id)]))[0])


def test_clicks_of_a_trained_label_count_and_those_of_a_novel_one_do_not(
    bundle: Bundle, tmp_path: Path
) -> None:
    memory = KnowledgeMemory(bundle)
    before = frequency(memory.view, "tent")
    memory.apply(
        [
            put(1, NewLabel(id="kayak", text="sea kayak", queries=("paddle", "boat for one"))),
            click(2, "igloo", "tent", "kayak"),
            click(3, "shelter", "tent"),
        ]
    )
    assert (frequency(memory.view, "tent"), frequency(memory.view, "kayak")) == (before + 2, 0)

    write_snapshot(memory.view, tmp_path / "snapshot", name="snapshot", log="0f" * 16)
    opened = KnowledgeMemory(open_bundle(tmp_path / "snapshot"), version=3)
    assert (frequency(opened.view, "tent"), frequency(opened.view, "kayak")) == (before + 2, 0)
    opened.apply([click(4, "river", "tent", "kayak")])
    assert (frequency(opened.view, "tent"), frequency(opened.view, "kayak")) == (before + 3, 0)


# Trees --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trees(tmp_path_factory.mktemp("trees") / "trees.onnx")


def test_each_candidate_has_a_sum_whatever_is_beside_it(graph: Path) -> None:
    trees = OnnxTrees(graph, features=len(FEATURES))
    features = (np.random.default_rng(1).random((200, len(FEATURES))) * 20).astype(np.float32)
    scores = trees.scores(features)
    assert scores.shape == (200,) and len(np.unique(scores)) > 10
    one_by_one = [float(trees.scores(row[None])[0]) for row in features]
    assert scores.tolist() == one_by_one
    assert trees.scores(features[:0]).tolist() == []


def test_other_graphs_and_trees_of_other_features_are_refused(graph: Path, tmp_path: Path) -> None:
    write_tiny_encoder(tmp_path)
    (tmp_path / "no.onnx").write_text("no graph")
    for path, features, said in (
        (graph, 3, "does not read features"),
        (tmp_path / "encoder.onnx", len(FEATURES), "does not read features"),
        (tmp_path / "no.onnx", len(FEATURES), "not a graph"),
    ):
        with pytest.raises(BundleAltered, match=said):
            OnnxTrees(path, features=features)
