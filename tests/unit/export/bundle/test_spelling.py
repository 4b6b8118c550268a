"""Whether a bundle corrects queries by default is measured on hidden rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from export.bundle.hidden_rows import HiddenRows
from export.bundle.spelling import choose_spelling
from service.core.bundle.bundle import open_bundle
from service.core.prediction import predictor
from service.core.types import Reading
from tests.support.tiny.bundles import Catalogue, make_bundle
from training.checkpoints.trained_texts import TrainedTexts
from training.progress import say_nothing

KINDS = ("trail", "winter", "summer", "mountain", "forest", "desert")
NOUNS = ("jacket", "bottle", "compass", "blanket", "lantern")
TEXTS = {f"{kind} {noun}": (noun,) for kind in KINDS for noun in NOUNS}
CATALOGUE = Catalogue(labels={noun: f"{noun}s" for noun in NOUNS}, instances=TEXTS)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> HiddenRows:
    bundle = open_bundle(make_bundle(tmp_path_factory.mktemp("bundle") / "tiny", CATALOGUE))
    return HiddenRows.of(bundle, TrainedTexts())


def test_spelling_that_helps_is_the_default(hidden: HiddenRows) -> None:
    said: list[tuple[str, int, int]] = []
    chosen = choose_spelling(hidden, report=lambda *stage: said.append(stage))
    assert chosen.spelling == "auto"
    figures = chosen.metrics
    assert figures["spelling.typo_P@1_auto"] > figures["spelling.typo_P@1_off"]
    assert figures["spelling.P@1_auto"] == figures["spelling.P@1_off"]
    facts = hidden.bundle.manifest
    assert replace(chosen, spelling="off", metrics=facts.metrics) == facts
    assert said[-1] == ("measure spelling", 2 * len(TEXTS), 2 * len(TEXTS))


def test_spelling_that_harms_is_not(hidden: HiddenRows, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_lexicon: object, query: str) -> tuple[Reading, ...]:
        return (Reading(query=query, text="compass"),)

    monkeypatch.setattr(predictor, "readings", wrong)
    hidden = HiddenRows.of(hidden.bundle, TrainedTexts())  # which has no answers yet
    chosen = choose_spelling(hidden, report=say_nothing)
    assert chosen.spelling == "off"
    assert chosen.metrics["spelling.P@1_auto"] < chosen.metrics["spelling.P@1_off"]


def test_a_bundle_without_instances_corrects(tmp_path: Path) -> None:
    labels = Catalogue(labels=CATALOGUE.labels, instances={})
    bundle = open_bundle(make_bundle(tmp_path / "tiny", labels))
    chosen = choose_spelling(HiddenRows.of(bundle, TrainedTexts()), report=say_nothing)
    assert (chosen.spelling, chosen.metrics) == ("auto", bundle.manifest.metrics)
