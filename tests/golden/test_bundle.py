"""The golden bundles of format version 1 open, and answer as they did when they were written.

`write_bundle` wrote the files. Scores may differ by 1e-5: another processor, or another build of
the ONNX runtime or of the index library, sums floating-point numbers in another order.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import DeleteLabel
from service.core.encoding.encoder import OnnxEncoder, encode, open_query_encoder
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.types import Label, Role
from tests.golden import write_bundle
from tests.golden.write_bundle import CLICK, FIXTURES, LOG, PROMPTS, Fixture

TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=FIXTURES, ids=[fixture.name for fixture in FIXTURES])
def golden(request: pytest.FixtureRequest) -> Fixture:
    fixture: Fixture = request.param
    return fixture


@pytest.fixture(scope="module")
def bundle(golden: Fixture) -> Bundle:
    return open_bundle(golden.folder)


@pytest.fixture(scope="module")
def recorded(golden: Fixture) -> Any:
    return orjson.loads(golden.answers.read_bytes())


@pytest.mark.parametrize("exact", [False, True])
def test_it_answers_as_recorded(bundle: Bundle, recorded: Any, exact: bool) -> None:
    predictions = write_bundle.predictions(bundle, exact=exact)
    assert len(predictions) == 9
    for prediction, before in zip(predictions, recorded["predictions"], strict=True):
        for key in ("query", "memorization"):
            assert prediction[key] == before[key]
        assert list(prediction["keywords"]) == list(before["keywords"])
        assert prediction["keywords"] == pytest.approx(before["keywords"], abs=TOLERANCE)


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
    assert (facts.memory.version, facts.log) == (4, LOG)
    assert facts.novel is not None
    encoder = facts.encoder
    assert {
        "query_prompt": encoder.query_prompt,
        "label_prompt": encoder.label_prompt,
    } == PROMPTS


def test_its_query_encoder_has_the_facts_that_were_written(bundle: Bundle, golden: Fixture) -> None:
    queries = bundle.query_encoder
    assert (queries is not None) == (golden.query_encoder is not None)
    if queries is not None:
        facts = bundle.manifest.encoder
        assert queries.facts == replace(facts, name="tiny queries", fingerprint="q" * 64)
        ours = OnnxEncoder(bundle.folder, facts)
        [query] = encode(open_query_encoder(bundle, ours), ["a light tent"], role=Role.QUERY)
        assert query @ encode(ours, ["a light tent"], role=Role.QUERY)[0] < 0.99


def test_its_click_votes_with_the_weight_that_it_was_posted_with(
    bundle: Bundle, golden: Fixture
) -> None:
    row = list(bundle.instance_texts).index(CLICK.query)
    columns, _, weights = KnowledgeMemory(bundle).view.weighted_votes(np.array([row]))
    assert sorted(bundle.label_ids[column] for column in columns.tolist()) == ["mühle", "stove"]
    assert (None if weights is None else weights.tolist()) == (
        None if golden.weight == 1.0 else [2.5, 2.5]
    )


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


def test_it_remembers_its_clicks_if_it_was_written_so(bundle: Bundle, golden: Fixture) -> None:
    clicks = [bundle.instance_texts[row] for row in bundle.clicks.tolist()]
    assert clicks == ([] if golden.name == "bundle-v1" else [write_bundle.CLICK.query])


def test_deleting_one_of_its_labels_deletes_that_labels_rows(bundle: Bundle) -> None:
    """The label's own row and its query's row die; the click stays, as a vote for the stove."""
    view = KnowledgeMemory(bundle, version=4).apply([DeleteLabel(sequence=5, id="mühle")])
    assert (view.version, view.dead_rows) == (5, 2)
    texts = list(bundle.instance_texts)
    rows = np.array([texts.index("Kaffee am Morgen"), texts.index("breakfast outdoors")])
    columns, counts = view.votes(rows)
    assert (columns.tolist(), counts.tolist()) == ([view.labels.column("stove")], [0, 1])


def test_the_fixture_is_small(golden: Fixture) -> None:
    assert sum(path.stat().st_size for path in golden.folder.rglob("*") if path.is_file()) < 50_000
