"""Confidences never rise with the rank, do not depend on what a request asks for, and cut lists."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle
from service.core.errors import BundleUnsupported, NotInBundle
from service.core.lexical.spelling import readings
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.options import complete_options
from service.core.prediction.confidence import (
    FEATURES,
    Confidence,
    features_of,
    open_confidence,
)
from service.core.prediction.predictor import Predictor
from service.core.prediction.ranking import Ranker
from service.core.prediction.reranking.reranker import open_reranker
from service.core.types import Keyword, PredictOptions, Reading
from tests.support.tiny.bundles import Catalogue
from tests.support.tiny.confidence import BEST, confidence_facts, with_confidence
from tests.support.tiny.encoder import TrigramEncoder

QUERY = "winter trail boots"
Ask = Callable[..., tuple[Keyword, ...]]


@pytest.fixture
def folder(make_bundle: Callable[..., Path]) -> Path:
    return with_confidence(make_bundle(encoder=TrigramEncoder(), reranked=4))


@pytest.fixture
def view(folder: Path) -> View:
    return KnowledgeMemory(open_bundle(folder)).view


@pytest.fixture
def ask(view: View) -> Ask:
    predictor = Predictor(
        TrigramEncoder(),
        tau=0.1,
        reranker=open_reranker(view.bundle),
        confidence=open_confidence(view.bundle.manifest),
    )

    def asked(query: str = QUERY, **options: object) -> tuple[Keyword, ...]:
        chosen = PredictOptions(**({"depth": 14} | options))
        return predictor.predict(view, [query], chosen).predictions[0].keywords

    return asked


def sure(keywords: tuple[Keyword, ...]) -> list[float]:
    return [keyword.confidence for keyword in keywords if keyword.confidence is not None]


@pytest.mark.parametrize("candidates", [0, 4])
def test_confidences_descend_from_that_of_the_best(ask: Ask, candidates: int) -> None:
    keywords = ask(candidates=candidates)
    assert sure(keywords)[0] == pytest.approx(BEST)
    assert sure(keywords) == sorted(sure(keywords), reverse=True)
    assert len(sure(keywords)) == len(keywords) > 2


def test_lower_ranks_are_never_surer() -> None:
    features = np.zeros((3, len(FEATURES)))
    features[:, 0] = (0.0, -2.0, -1.0)
    found = Confidence(confidence_facts()).of(features)
    assert found[0] > found[1] == found[2]
    steeper = Confidence(confidence_facts(slope=-1.0)).of(features)
    assert steeper.tolist() == [steeper[0]] * 3


def test_what_is_requested_does_not_change_a_confidence(ask: Ask) -> None:
    whole = {keyword.id: keyword.confidence for keyword in ask(top_k=10)}
    for options in ({"top_k": 2}, {"diversity": 0.9}, {"match": ("broad",)}):
        for keyword in ask(**options):
            assert keyword.confidence == whole[keyword.id], options


@pytest.mark.parametrize("query", [QUERY, "Trail tarp boots", "T-shirt boots", ""])
def test_known_words_count_alike_with_and_without_spelling(view: View, query: str) -> None:
    ranking = Ranker().rank(
        view,
        rows=np.arange(2),
        similarities=np.ones(2, np.float32),
        tau=0.1,
        memorization=PredictOptions().memorization,
        top_k=10,
    )
    [reading, *_] = readings(view.lexicon, query)
    unread = replace(reading, known=frozenset())
    assert (features_of(view, reading, ranking) == features_of(view, unread, ranking)).all()


def test_the_row_of_a_known_query_tells_its_labels_from_others(view: View) -> None:
    text = view.text(0)
    [own, *_] = view.votes(np.arange(1))[0].tolist()
    other = next(column for column in range(view.labels.columns) if column != own)
    ranking = (
        Ranker()
        .rank(
            view,
            rows=np.arange(2),
            similarities=np.ones(2, np.float32),
            tau=0.1,
            memorization=PredictOptions().memorization,
            top_k=10,
        )
        ._replace(columns=[own, other], scores=[0.6, 0.4], places=range(2))
    )

    def found(query: str, view: View = view) -> list[float]:
        features = features_of(view, Reading(query=query, text=query), ranking)
        return features[:, FEATURES.index("own row of the query votes for it")].tolist()

    assert found(text) == found(f" {text.upper()} ") == [1.0, -1.0]
    assert found(f"{text} more") == [0.0, 0.0]
    without = view.labels.without([own])
    assert found(text, replace(view, labels=without)) == [0.0, 0.0]


@pytest.mark.parametrize("diversity", [0.0, 0.5])
def test_keywords_below_the_least_confidence_are_left_out(ask: Ask, diversity: float) -> None:
    whole = ask(top_k=10)
    least = sure(whole)[1]
    kept = ask(top_k=10, min_confidence=least, diversity=diversity)
    assert {keyword.id for keyword in kept} == {
        keyword.id for keyword in whole if keyword.confidence >= least
    }
    assert ask(min_confidence=1.0) == ()


def test_a_query_that_finds_nothing_has_no_confidence(
    make_bundle: Callable[..., Path],
) -> None:
    bundle = open_bundle(with_confidence(make_bundle(Catalogue(instances={}))))
    predictor = Predictor(TrigramEncoder(), tau=0.1, confidence=open_confidence(bundle.manifest))
    view = KnowledgeMemory(bundle).view
    options = PredictOptions(memorization=1.0)  # only instances vote, and there are none
    [prediction] = predictor.predict(view, [QUERY], options).predictions
    assert prediction.keywords == ()


def test_a_bundle_without_confidences_refuses_a_least_one(folder: Path) -> None:
    facts = manifest.read(folder)
    assert complete_options(facts, min_confidence=0.5).min_confidence == 0.5
    of_votes = replace(facts, confidence={"votes": confidence_facts()})
    assert complete_options(of_votes, min_confidence=0.5, rerank=False).min_confidence == 0.5
    for without, rerank in ((replace(facts, confidence=None), None), (of_votes, True)):
        with pytest.raises(NotInBundle, match="no confidence") as refused:
            complete_options(without, min_confidence=0.5, rerank=rerank)
        assert refused.value.field == "min_confidence"


@pytest.mark.parametrize(
    "facts",
    [
        replace(confidence_facts(), features=["rank"]),
        replace(confidence_facts(), hidden=[[1.0]]),
        replace(confidence_facts(), output=[1.0]),
    ],
)
def test_confidences_of_another_version_are_refused(facts: manifest.ConfidenceFacts) -> None:
    with pytest.raises(BundleUnsupported, match="export it again"):
        Confidence(facts)
