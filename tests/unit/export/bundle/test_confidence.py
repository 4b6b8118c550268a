"""Confidences are fitted on hidden rows, so that they can be believed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import check_grad

from export.bundle import confidence
from export.bundle.confidence import FEWEST_ROWS, Sample, fit_confidence, fitted_network
from export.bundle.hidden_rows import HiddenRows
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.memory.view import View
from service.core.options import complete_options
from service.core.prediction.confidence import FEATURES, Confidence, open_confidence
from service.core.prediction.predictor import Predictor
from service.core.types import PredictOptions
from tests.support.tiny.bundles import Catalogue, make_bundle
from training.checkpoints.trained_texts import TrainedTexts
from training.progress import say_nothing

KINDS = ("trail", "winter", "summer", "mountain", "forest", "desert", "rain", "snow", "city", "sea")
NOUNS = ("jacket", "bottle", "compass", "blanket", "lantern", "hammock", "paddle", "helmet")
MORE = ("old", "new")
ALIKE = [(more, noun, kind) for more in MORE for noun in NOUNS for kind in KINDS]
TEXTS = {f"{more} {kind} {noun}": (noun,) for more in MORE for kind in KINDS for noun in NOUNS}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    catalogue = Catalogue(labels={noun: f"{noun}s" for noun in NOUNS}, instances=TEXTS)
    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    return open_bundle(make_bundle(folder, catalogue, depth=50, reranked=4))


def test_right_keywords_are_surer_than_nonsense(bundle: Bundle) -> None:
    hidden = HiddenRows.of(bundle, TrainedTexts())
    said: list[tuple[str, int, int]] = []
    facts = fit_confidence(hidden, report=lambda *stage: said.append(stage))
    assert facts.confidence is not None
    assert list(facts.confidence) == ["votes", "probability"]
    assert replace(facts, confidence=None) == bundle.manifest
    asked = 5 * len(TEXTS) // 2  # as it is, with a typo, and half as much nonsense
    assert said[-1] == ("fit confidences", asked, asked)
    predictor = Predictor(hidden.encoder, tau=0.1, confidence=open_confidence(facts))
    options = PredictOptions(depth=50, top_k=2)
    queries = ["mountain lantern", "blue helmet", "zzkw qqx", "xvbn"]
    answer = predictor.predict(hidden.view, queries, options)
    best = [prediction.keywords[0].confidence or 0.0 for prediction in answer.predictions]
    assert min(best[:2]) > 0.8
    assert max(best[2:]) < 0.3
    again = fit_confidence(HiddenRows.of(bundle, TrainedTexts()), report=say_nothing)
    assert again == facts


def test_known_queries_are_sure_and_new_ones_are_not_surer_for_it(tmp_path: Path) -> None:
    """Of 15 rows that look alike, each has a label of its own: only a known one can be answered."""
    texts = {f"{more} {noun} no {kind}": (f"{more} {noun} {kind}",) for more, noun, kind in ALIKE}
    labels = {label: f"label {place}" for place, (label,) in enumerate(texts.values())}
    catalogue = Catalogue(labels=labels, instances=texts)
    bundle = open_bundle(make_bundle(tmp_path / "alike", catalogue, depth=50))
    hidden = HiddenRows.of(bundle, TrainedTexts())
    facts = fit_confidence(hidden, report=say_nothing)
    predictor = Predictor(hidden.encoder, tau=0.1, confidence=open_confidence(facts))

    def first(view: View, query: str) -> float:
        [answer] = predictor.predict(view, [query], complete_options(facts)).predictions
        return answer.keywords[0].confidence or 0.0

    rows = hidden.rows[:20]
    known = [first(hidden.view, hidden.text(row)) for row in rows]
    new = [first(hidden.without(row), hidden.text(row)) for row in rows]
    assert min(known) > 0.9
    assert max(new) < 0.3


def test_only_rows_that_were_not_trained_on_are_hidden(bundle: Bundle) -> None:
    texts = list(TEXTS)
    trained = TrainedTexts().after(texts, trained=np.arange(10, len(texts)), held_out=np.arange(10))
    hidden = HiddenRows.of(bundle, trained)
    assert sorted(hidden.rows) == list(range(10))
    assert len(hidden.rows) < FEWEST_ROWS
    assert fit_confidence(hidden, report=say_nothing) == bundle.manifest  # too few
    [row] = hidden.rows[:1]
    own = bundle.keys[row : row + 1].astype(np.float32)
    assert hidden.view.retrieve(own, depth=1)[1].tolist() == [[row]]
    assert hidden.without(row).retrieve(own, depth=1)[1].tolist() != [[row]]


def test_a_fitted_network_finds_the_probabilities() -> None:
    chance = np.random.default_rng(0)
    features = chance.normal(size=(20_000, len(FEATURES)))
    truth = 1 / (1 + np.exp(-(2 * features[:, 0] - np.abs(features[:, 3]))))
    relevant = chance.random(len(truth)) < truth
    samples = [
        Sample(features=features[row : row + 1], relevant=relevant[row : row + 1], weight=1.0)
        for row in range(len(truth))
    ]
    network = Confidence(fitted_network(samples))
    found = np.concatenate([network.of(sample.features) for sample in samples])
    assert np.abs(found - truth).mean() < 0.04


def test_the_gradient_is_that_of_the_loss() -> None:
    chance = np.random.default_rng(1)
    inputs = np.column_stack([chance.normal(size=(20, 3)), np.ones(20)])
    loss = confidence._loss(inputs, (chance.random(20) < 0.5).astype(float), np.full(20, 0.05))
    start = chance.normal(size=confidence._UNITS * 4 + confidence._UNITS + 1)
    gap = check_grad(lambda one: loss(one)[0], lambda one: loss(one)[1], start)
    assert gap < 1e-6


def test_rows_without_a_label_are_not_hidden(tmp_path: Path) -> None:
    bundle = open_bundle(make_bundle(tmp_path / "few"))
    hidden = HiddenRows.of(bundle, TrainedTexts())
    texts = {hidden.text(row) for row in hidden.rows}
    assert "shoes for running" in texts
    assert "nothing was clicked" not in texts
