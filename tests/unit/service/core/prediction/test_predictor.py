"""Prediction through the whole core: Eq. 7 against a dense oracle, evidence, order, cache."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.lexical import lexicon
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.predictor import (
    EVIDENCE_ROWS,
    Predictor,
    QueryCache,
    first_votes,
)
from service.core.types import Keyword, PredictOptions, Role
from tests.support.oracle import Oracle, ranked
from tests.support.tiny.bundles import INSTANCES, LABELS, Catalogue
from tests.support.tiny.encoder import TrigramEncoder

ENCODER = TrigramEncoder()
TAU = 0.1
ALL = len(INSTANCES) + len(LABELS)  # depth that retrieves all rows of the tiny bundle
QUERIES = ("a tent for two", "winter trail boots", "lamp", "")
PREDICTOR = Predictor(ENCODER, tau=TAU)
Opened = Callable[..., View]

queries = st.sampled_from(QUERIES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


def ask(predictor: Predictor, view: View, query: str, **options: object) -> tuple[Keyword, ...]:
    chosen = {"top_k": 50, "depth": ALL} | options
    return predictor.predict(view, [query], PredictOptions(**chosen)).predictions[0].keywords


def scores(keywords: tuple[Keyword, ...]) -> dict[str, float]:
    return {keyword.id: keyword.score for keyword in keywords}


@pytest.fixture
def view_of(make_bundle: Callable[..., Path]) -> Opened:
    """`view_of(labels=..., instances=...)` returns the view of a new bundle."""
    names = map(str, count())

    def opened(vote_weights: list[float] | None = None, **catalogue: object) -> View:
        folder = make_bundle(
            Catalogue(**catalogue), name=next(names), encoder=ENCODER, vote_weights=vote_weights
        )
        return KnowledgeMemory(open_bundle(folder)).view

    return opened


WORDS = st.sampled_from(["wireless", "headphones", "red", "tent", "bag", "XK-4411"])
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    instances=st.dictionaries(TEXTS, st.sampled_from(list(LABELS)), min_size=2, max_size=9),
    data=st.data(),
)
def test_the_order_of_rows_changes_no_score(
    instances: dict[str, str], data: st.DataObject, view_of: Opened
) -> None:
    def answer(order: Sequence[str], query: str) -> dict[str, float]:
        view = view_of(instances={text: (instances[text],) for text in order})
        found = ask(PREDICTOR, view, query, words=0.4, memorization=0.5, exact=True)
        return scores(found)

    order, query = data.draw(st.permutations(list(instances))), data.draw(TEXTS)
    with patch.multiple(lexicon, _LISTED=3, MOST_MATCHES=2):
        assert answer(list(instances), query) == pytest.approx(answer(order, query))


@pytest.mark.parametrize("place", [0, 75, 150])
@pytest.mark.parametrize("words", [0.0, 0.4, 1.0])
def test_a_known_query_is_answered_first_among_longer_ones_with_its_words(
    view_of: Opened, place: int, words: float
) -> None:
    instances = {f"{chr(97 + row % 26)}{row} wireless headphones": ("tent",) for row in range(150)}
    rows = list(instances.items())
    rows.insert(place, ("wireless headphones", ("lamp",)))
    view = view_of(instances=dict(rows))
    found = ask(PREDICTOR, view, "wireless headphones", words=words, depth=50, explain=True)
    [known] = [row for row in found if row.id == "lamp"]
    best = known.evidence[0]
    assert (best.text, best.words) == ("wireless headphones", pytest.approx(words))
    others = [row for found in found for row in found.evidence if row.text != best.text]
    assert all(row.similarity + row.words < best.similarity + best.words for row in others)


@pytest.fixture(scope="module")
def view(trigram_bundle: Bundle) -> View:
    return KnowledgeMemory(trigram_bundle).view


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle.of(Catalogue(), ENCODER)


# Eq. 7 and 8 -----------------------------------------------------------------------------


def test_a_memory_of_two_rows_by_hand(view_of: Opened) -> None:
    """One instance and one label of equal text share the weight: p = lambda/2 + (1-lambda)/2."""
    view = view_of(labels={"tent": "tent"}, instances={"tent": ("tent",)})
    (keyword,) = ask(PREDICTOR, view, "tent", memorization=0.2, explain=True)
    assert keyword.score == pytest.approx(0.5)
    assert [row.weight for row in keyword.evidence] == pytest.approx([0.4, 0.1])
    assert [row.kind for row in keyword.evidence] == ["label", "instance"]
    assert [row.similarity for row in keyword.evidence] == pytest.approx([1.0, 1.0], abs=1e-3)


@settings(max_examples=80)
@given(
    query=queries,
    memorization=st.sampled_from([0.0, 1.0]) | st.floats(min_value=0.0, max_value=1.0),
    depth=st.integers(min_value=1, max_value=ALL + 3) | st.just(2000),
    tau=st.sampled_from([0.02, 0.1, 1.0]),
    exact=st.booleans(),
)
def test_any_lambda_and_depth_is_the_dense_equation(
    view: View, oracle: Oracle, query: str, memorization: float, depth: int, tau: float, exact: bool
) -> None:
    """At lambda 0 the memory is a dual encoder over labels, at 1 a kNN classifier (Eq. 8)."""
    predictor, options = Predictor(ENCODER, tau=tau), {"depth": depth, "exact": exact}
    found = ask(predictor, view, query, memorization=memorization, **options)
    dense = oracle.scores(query, tau=tau, memorization=memorization, depth=depth)
    assert dict.fromkeys(LABELS, 0.0) | scores(found) == pytest.approx(dense, abs=1e-4)


# Order, depth and empty blocks -----------------------------------------------------------


@settings(max_examples=30)
@given(query=queries, top_k=st.integers(min_value=1, max_value=8))
def test_fewer_keywords_are_a_prefix_of_more(
    view: View, oracle: Oracle, query: str, top_k: int
) -> None:
    few, all_of_them = ask(PREDICTOR, view, query, top_k=top_k), ask(PREDICTOR, view, query)
    assert few == all_of_them[:top_k]
    best = ranked(oracle.scores(query, tau=TAU, memorization=0.5), top_k=top_k)
    assert [keyword.score for keyword in few] == pytest.approx(
        [score for _, score in best], abs=1e-5
    )


def test_without_instances_lambda_1_has_no_answer_and_others_have(view_of: Opened) -> None:
    view = view_of(instances={})
    assert ask(PREDICTOR, view, "tent", memorization=1.0) == ()
    assert ask(PREDICTOR, view, "tent", memorization=1.0, exact=True) == ()
    assert len(ask(PREDICTOR, view, "tent", memorization=0.5)) == len(LABELS)


# Evidence --------------------------------------------------------------------------------


@settings(max_examples=40)
@given(query=queries, memorization=st.floats(min_value=0.0, max_value=1.0))
def test_evidence_adds_up_to_the_score(view: View, query: str, memorization: float) -> None:
    [vector] = encode(ENCODER, [query], role=Role.QUERY)
    for keyword in ask(PREDICTOR, view, query, memorization=memorization, explain=True):
        weights = [row.weight for row in keyword.evidence]
        assert len(weights) < EVIDENCE_ROWS
        assert sum(weights) == pytest.approx(keyword.score)
        assert weights == sorted(weights, reverse=True)
        for row in keyword.evidence:
            if row.kind == "label":
                assert row.text == keyword.text
            else:
                assert keyword.id in INSTANCES[row.text]
            key = encode(ENCODER, [row.text], role=Role.LABEL)[0].astype(np.float16)  # as stored
            assert row.similarity == pytest.approx(float(key @ vector), abs=1e-5)
    unexplained = ask(PREDICTOR, view, query, memorization=memorization)
    assert all(keyword.evidence == () for keyword in unexplained)


def test_long_evidence_is_cut_to_its_heaviest_rows(view_of: Opened) -> None:
    instances = {f"tent number {number}": ("tent",) for number in range(EVIDENCE_ROWS + 5)}
    view = view_of(labels={"tent": "camping tent"}, instances=instances)
    (keyword,) = ask(PREDICTOR, view, "tent number 7", depth=50, explain=True)
    assert len(keyword.evidence) == EVIDENCE_ROWS
    assert keyword.evidence[0].text == "tent number 7"
    assert sum(row.weight for row in keyword.evidence) < keyword.score


def test_evidence_of_weighted_votes_adds_up_and_the_heaviest_vote_is_first(
    view_of: Opened,
) -> None:
    view = view_of(
        vote_weights=[0.5, 1.5, 1.9, 0.1],
        labels={"tent": "dome", "lamp": "light"},
        instances={"camping": ("tent", "lamp"), "campsite": ("tent", "lamp")},
    )
    words = {word.id: word for word in ask(PREDICTOR, view, "camping", depth=50, explain=True)}
    for keyword in words.values():
        found = [row.weight for row in keyword.evidence]
        assert sum(found) == pytest.approx(keyword.score)
        assert found == sorted(found, reverse=True)
    of_tent, of_lamp = (
        {row.text: row.weight for row in words[label_id].evidence} for label_id in ("tent", "lamp")
    )
    assert of_lamp["camping"] == pytest.approx(3 * of_tent["camping"])
    assert of_lamp["campsite"] == pytest.approx(of_tent["campsite"] / 19)


def test_all_keywords_of_a_query_are_explained_by_one_walk_over_the_votes(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[int] = []
    votes = View.weighted_votes
    monkeypatch.setattr(
        View, "weighted_votes", lambda self, rows: walks.append(1) or votes(self, rows)
    )
    assert len(ask(PREDICTOR, view, "tent", depth=50)) > 1
    assert not walks  # voting reads the votes in C
    ask(PREDICTOR, view, "tent", depth=50, explain=True)
    assert len(walks) == 1


@given(
    labels=st.lists(st.integers(0, 40), max_size=300),
    columns=st.lists(st.integers(0, 40), unique=True, max_size=30),
)
def test_the_first_votes_of_each_column_keep_their_order(
    labels: list[int], columns: list[int]
) -> None:
    votes, counts = first_votes(np.array(labels, np.int32), columns=columns)
    expected = [
        [place for place, label in enumerate(labels) if label == column][:EVIDENCE_ROWS]
        for column in columns
    ]
    assert counts == [len(places) for places in expected]
    assert votes.tolist() == [place for places in expected for place in places]


# Answers ---------------------------------------------------------------------------------


def test_several_queries_are_answered_in_their_order(view: View) -> None:
    asked = ["tent", "boots", "tent", "lamp"]
    options = PredictOptions(depth=ALL)
    answer = PREDICTOR.predict(view, asked, options)
    assert [prediction.query for prediction in answer.predictions] == asked
    for prediction in answer.predictions:
        alone = PREDICTOR.predict(view, [prediction.query], options).predictions[0]
        assert list(scores(prediction.keywords)) == list(scores(alone.keywords))
        assert scores(prediction.keywords) == pytest.approx(scores(alone.keywords), abs=1e-6)
    assert PREDICTOR.predict(view, [], PredictOptions()).predictions == ()


def test_the_reading_with_the_most_votes_is_answered(view_of: Opened) -> None:
    """ "carruts" may be carrots or carrets; most votes agree on the carrets."""
    labels = {"camp": "carrets", "lamp": "carrots", "other": "light"}
    instances = {"carrots": ("lamp", "other"), "carrets": ("camp",), "carrets site": ("camp",)}
    view = view_of(labels=labels, instances=instances)
    options = PredictOptions(depth=ALL, spelling=True)
    answers = PREDICTOR.predict(view, ["carrots", "carruts", "light"], options).predictions
    assert [answer.query for answer in answers] == ["carrots", "carruts", "light"]
    assert [answer.reading.text for answer in answers] == ["carrots", "carrets", "light"]
    assert answers[1].keywords == ask(PREDICTOR, view, "carrets", top_k=10)
    best = {text: ask(PREDICTOR, view, text)[0].score for text in ("carrets", "carrots")}
    assert best["carrets"] > best["carrots"]
    plain = replace(options, spelling=False)
    assert PREDICTOR.predict(view, ["carruts"], plain).predictions[0].reading.text == "carruts"


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


# Cache -----------------------------------------------------------------------------------


def vector(value: float) -> np.ndarray:
    return np.full(2, value, np.float32)


def known(cache: QueryCache, *texts: str) -> dict[str, float]:
    """Return the first components of the vectors that the cache has."""
    return {text: float(vector[0]) for text, vector in cache.known(texts).items()}


def test_known_queries_are_found_and_the_least_recently_used_goes_first() -> None:
    cache, nothing = QueryCache(2), QueryCache(0)
    for one in (cache, nothing):
        one.add({"a": vector(1), "b": vector(2)})
    assert known(cache, "b", "x", "a", "b", "a") == {"a": 1, "b": 2}
    assert (cache.hits, cache.misses) == (4, 1)
    cache.add({"c": vector(3)})
    assert known(cache, "a", "b", "c") == {"a": 1, "c": 3}
    assert known(nothing, "a") == {}
