"""The golden bundle of format version 1 opens, and answers as it did when it was written.

`write_bundle` wrote the files. Scores may differ by 1e-5, because the order of floating-point sums
depends on the processor and on the build of ONNX Runtime and the index library.
"""

from typing import Any

import numpy as np
import orjson
import pytest

from service.core.bundle import manifest
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import DeleteLabel
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.lexical.spelling import readings
from service.core.lexical.words import words_of
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.types import Label, Role
from tests.golden import write_bundle
from tests.golden.write_bundle import ANSWERS, BUNDLE, CHAIN, CLICK, LOG, PROMPTS

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(BUNDLE)


@pytest.fixture(scope="module")
def recorded() -> Any:
    return orjson.loads(ANSWERS.read_bytes())


@pytest.mark.parametrize("exact", [False, True])
def test_it_answers_as_recorded(bundle: Bundle, recorded: Any, exact: bool) -> None:
    predictions = write_bundle.predictions(bundle, exact=exact)
    assert len(predictions) == 9
    for prediction, before in zip(predictions, recorded["predictions"], strict=True):
        for key in ("query", "memorization"):
            assert prediction[key] == before[key]
        assert list(prediction["keywords"]) == list(before["keywords"])
        assert prediction["keywords"] == pytest.approx(before["keywords"], abs=TOLERANCE)


def test_its_manifest_names_no_builder(bundle: Bundle) -> None:
    """The facts that make up its fingerprint stay the same."""
    assert bundle.manifest.index.builder is None
    assert "builder" not in manifest.as_document(bundle.manifest)["index"]


def test_its_words_are_those_of_its_texts(bundle: Bundle) -> None:
    texts = [*bundle.instance_texts, *bundle.label_texts]
    assert list(bundle.words.words) == sorted({word for text in texts for word in words_of(text)})
    view = KnowledgeMemory(bundle).view
    assert [reading.text for reading in readings(view.lexicon, "camping tnet")] == ["camping tent"]


def test_it_represents_a_novel_label_as_recorded(bundle: Bundle, recorded: Any) -> None:
    found, before = write_bundle.novel_label(bundle), recorded["novel_label"]
    assert found["key"] == pytest.approx(before["key"], abs=1e-3)  # stored in fp16
    assert list(found["neighbours"]) == list(before["neighbours"])
    assert found["neighbours"] == pytest.approx(before["neighbours"], abs=TOLERANCE)


def test_the_stored_instance_keys_are_what_its_encoder_returns(bundle: Bundle) -> None:
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    stored = bundle.keys[: bundle.instances].astype(np.float32)
    encoded = encode(encoder, list(bundle.instance_texts), role=Role.QUERY)
    assert encoded == pytest.approx(stored, abs=1e-3)


def test_its_manifest_has_every_fact(bundle: Bundle) -> None:
    facts = bundle.manifest
    assert (facts.version, facts.name, facts.dataset) == (1, "golden", "outdoor goods")
    assert (facts.memory.version, facts.log, facts.log_chain) == (4, LOG, CHAIN)
    assert facts.novel is not None
    assert {name: getattr(facts.encoder, name) for name in PROMPTS} == PROMPTS


def test_its_click_votes_with_the_weight_that_it_was_posted_with(bundle: Bundle) -> None:
    assert [bundle.instance_texts[row] for row in bundle.clicks.tolist()] == [CLICK.query]
    row = list(bundle.instance_texts).index(CLICK.query)
    columns, _, weights = KnowledgeMemory(bundle).view.weighted_votes(np.array([row]))
    assert sorted(bundle.label_ids[column] for column in columns.tolist()) == ["mühle", "stove"]
    assert weights.tolist() == [2.5, 2.5]


def test_its_classifiers_are_those_of_labels_that_no_write_changed(bundle: Bundle) -> None:
    assert bundle.novel is not None
    ids = [bundle.label_ids[column] for column in bundle.novel.columns.tolist()]
    assert ids == ["bottle", "lamp", "shoes", "stove"]


def test_its_labels_are_those_that_were_written(bundle: Bundle) -> None:
    table = KnowledgeMemory(bundle, version=4).view.labels
    assert list(bundle.label_ids) == ["bottle", "lamp", "shoes", "stove", "tent", "kayak", "mühle"]
    assert table.require("mühle") == Label(
        index=6,
        id="mühle",
        text="Kaffeemühle ☕",
        queries=("Kaffee am Morgen",),
        metadata={"bid": "0.30"},
        novel=True,
        version=1,
    )
    assert table.require("tent") == Label(
        index=4, id="tent", text="family tent", metadata={"bid": "0.10"}, version=2
    )
    assert table.require("lamp") == Label(index=1, id="lamp", text="head lamp")


def test_deleting_one_of_its_labels_deletes_that_labels_rows(bundle: Bundle) -> None:
    """The label's row and its query's row die; the click's row now votes only for the stove."""
    view = KnowledgeMemory(bundle, version=4).apply([DeleteLabel(sequence=5, id="mühle")])
    assert (view.version, view.dead_rows) == (5, 2)
    texts = list(bundle.instance_texts)
    rows = np.array([texts.index("Kaffee am Morgen"), texts.index("breakfast outdoors")])
    columns, counts = view.votes(rows)
    assert (columns.tolist(), counts.tolist()) == ([view.labels.column("stove")], [0, 1])
