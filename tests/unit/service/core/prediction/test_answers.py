"""What an answer carries beside its scores: evidence, metadata, order, and its repetition."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.evidence import EVIDENCE_ROWS
from service.core.prediction.predictor import Predictor, Stopwatch
from service.core.prediction.query_cache import QueryCache
from service.core.types import NewLabel, PredictOptions, RowKind
from tests.support.changes import put
from tests.support.questions import ALL, ask, scores, similarity_to
from tests.support.tiny.bundles import INSTANCES, Catalogue
from tests.support.tiny.encoder import TrigramEncoder

ENCODER = TrigramEncoder()
TAU = 0.1
QUERIES = ("a tent for two", "winter trail boots", "lamp", "")

queries = st.sampled_from(QUERIES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


@pytest.fixture
def predictor() -> Predictor:
    return Predictor(ENCODER, tau=TAU)


@pytest.fixture(scope="module")
def view(trigram_bundle: Bundle) -> View:
    return KnowledgeMemory(trigram_bundle).view


@settings(max_examples=40)
@given(query=queries, memorization=st.floats(min_value=0.0, max_value=1.0))
def test_evidence_adds_up_to_the_score(view: View, query: str, memorization: float) -> None:
    keywords = ask(
        Predictor(ENCODER, tau=TAU), view, query, memorization=memorization, explain=True
    )
    for keyword in keywords:
        weights = [row.weight for row in keyword.evidence]
        assert len(weights) < EVIDENCE_ROWS
        assert sum(weights) == pytest.approx(keyword.score)
        assert weights == sorted(weights, reverse=True)
        for row in keyword.evidence:
            if row.kind is RowKind.LABEL:
                assert row.text == keyword.text
            else:
                assert keyword.id in INSTANCES[row.text]
            assert row.similarity == pytest.approx(
                similarity_to(query, [row.text], ENCODER)[0], abs=1e-5
            )


def test_long_evidence_is_cut_to_its_heaviest_rows(
    make_bundle: Callable[..., Path], predictor: Predictor
) -> None:
    instances = {f"tent number {number}": ("tent",) for number in range(EVIDENCE_ROWS + 5)}
    catalogue = Catalogue(labels={"tent": "camping tent"}, instances=instances)
    view = KnowledgeMemory(open_bundle(make_bundle(catalogue, encoder=ENCODER))).view
    (keyword,) = ask(predictor, view, "tent number 7", depth=50, explain=True)
    assert len(keyword.evidence) == EVIDENCE_ROWS
    assert keyword.evidence[0].text == "tent number 7"
    assert sum(row.weight for row in keyword.evidence) < keyword.score


def test_evidence_of_weighted_votes_adds_up_and_the_heaviest_vote_is_first(
    make_bundle: Callable[..., Path], predictor: Predictor
) -> None:
    catalogue = Catalogue(
        labels={"tent": "dome", "lamp": "light"},
        instances={"camping": ("tent", "lamp"), "campsite": ("tent", "lamp")},
    )
    weights = [0.5, 1.5, 1.9, 0.1]
    folder = make_bundle(catalogue, encoder=ENCODER, vote_weights=weights)
    view = KnowledgeMemory(open_bundle(folder)).view
    tent, lamp = sorted(
        ask(predictor, view, "camping", depth=50, explain=True), key=lambda word: word.id != "tent"
    )
    for keyword in (tent, lamp):
        assert sum(row.weight for row in keyword.evidence) == pytest.approx(keyword.score)
        found = [row.weight for row in keyword.evidence]
        assert found == sorted(found, reverse=True)
    of_tent, of_lamp = ({row.text: row.weight for row in word.evidence} for word in (tent, lamp))
    assert of_lamp["camping"] == pytest.approx(3 * of_tent["camping"])
    assert of_lamp["campsite"] == pytest.approx(of_tent["campsite"] / 19)


def test_all_keywords_of_a_query_are_explained_by_one_walk_over_the_votes(
    predictor: Predictor, view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[int] = []
    votes = View.weighted_votes
    monkeypatch.setattr(
        View, "weighted_votes", lambda self, rows: walks.append(1) or votes(self, rows)
    )
    assert len(ask(predictor, view, "tent", depth=50)) > 1
    walks_of_voting = len(walks)  # none where the votes are counted in compiled code
    ask(predictor, view, "tent", depth=50, explain=True)
    assert len(walks) == 2 * walks_of_voting + 1


def test_without_explain_there_is_no_evidence(predictor: Predictor, view: View) -> None:
    assert all(keyword.evidence == () for keyword in ask(predictor, view, "tent"))


def test_a_live_label_is_predicted_with_its_metadata(
    trigram_bundle: Bundle, predictor: Predictor
) -> None:
    memory = KnowledgeMemory(trigram_bundle)
    label = NewLabel(
        id="kayak", text="sea kayak", queries=("paddle boat",), metadata={"bid": "0.30"}
    )
    before = memory.view
    view = memory.apply([put(5, label)])
    answer = predictor.predict(view, ["paddle boat"], PredictOptions(explain=True))
    best = answer.predictions[0].keywords[0]
    assert answer.version == 5
    assert (best.id, best.text, best.novel, best.metadata) == (
        "kayak",
        "sea kayak",
        True,
        {"bid": "0.30"},
    )
    assert best.evidence[0].text == "paddle boat"
    assert "kayak" not in scores(ask(predictor, before, "paddle boat"))


def test_several_queries_are_answered_in_their_order(predictor: Predictor, view: View) -> None:
    asked = ["tent", "boots", "tent", "lamp"]
    options = PredictOptions(depth=ALL)
    answer = predictor.predict(view, asked, options)
    assert [prediction.query for prediction in answer.predictions] == asked
    for prediction in answer.predictions:
        alone = predictor.predict(view, [prediction.query], options).predictions[0]
        assert [keyword.id for keyword in prediction.keywords] == [
            keyword.id for keyword in alone.keywords
        ]
        assert scores(prediction.keywords) == pytest.approx(scores(alone.keywords), abs=1e-6)


def test_no_queries_have_no_predictions(predictor: Predictor, view: View) -> None:
    assert predictor.predict(view, [], PredictOptions()).predictions == ()


def test_the_same_question_has_the_same_answer_bit_for_bit(tiny_bundle_folder: Path) -> None:
    bundle = open_bundle(tiny_bundle_folder)
    predictor = Predictor(OnnxEncoder(bundle.folder, bundle.manifest.encoder), tau=TAU)
    view, options = KnowledgeMemory(bundle).view, PredictOptions(explain=True)
    first = predictor.predict(view, QUERIES[:3], options).predictions
    assert predictor.predict(view, QUERIES[:3], options).predictions == first
    reopened = KnowledgeMemory(open_bundle(tiny_bundle_folder)).view
    assert predictor.predict(reopened, QUERIES[:3], options).predictions == first


def test_cached_queries_give_the_same_answer_without_encoding(view: View) -> None:
    encoder, cache = TrigramEncoder(), QueryCache(2)
    cached = Predictor(encoder, tau=TAU, cache=cache)
    options = PredictOptions()
    first = cached.predict(view, ["tent", "boots", "tent"], options)
    assert encoder.encoded == 2  # equal texts of one request are encoded once
    second = cached.predict(view, ["tent", "boots", "tent"], options)
    assert encoder.encoded == 2
    assert second.predictions == first.predictions
    assert (cache.hits, cache.misses) == (3, 3)
    assert "encode" in first.seconds
    assert "encode" not in second.seconds


def test_a_stage_is_timed_also_when_it_fails() -> None:
    watch = Stopwatch()
    with pytest.raises(RuntimeError), watch.stage("encode"):
        raise RuntimeError
    with watch.stage("encode"):
        pass
    assert list(watch.seconds) == ["encode"]
    assert watch.seconds["encode"] >= 0.0
