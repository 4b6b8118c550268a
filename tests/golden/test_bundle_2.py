"""A bundle of version 2, a snapshot, answers as on its first day and still knows its labels.

The files were made by `write_bundle_2`. Scores may differ by 1e-5: another build of the ONNX
runtime or of the index library adds in another order.
"""

from pathlib import Path

import numpy as np
import orjson
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.memory.changes import DeleteLabel
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.types import Label, PredictOptions

HERE = Path(__file__).parent
BUNDLE = HERE / "bundle-v2"
SCORE_TOLERANCE = 1e-5
ANSWERS = orjson.loads((HERE / "bundle-v2.answers.json").read_bytes())


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(BUNDLE)


@pytest.mark.parametrize(
    "recorded", ANSWERS, ids=lambda answer: f"{answer['query']}-{answer['memorization']}"
)
@pytest.mark.parametrize("exact", [False, True])
def test_a_bundle_of_version_2_answers_as_recorded(
    bundle: Bundle, recorded: dict, exact: bool
) -> None:
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    predictor = Predictor(encoder, tau=bundle.manifest.predictor.tau)
    options = PredictOptions(top_k=4, depth=5, memorization=recorded["memorization"], exact=exact)
    answer = predictor.predict(KnowledgeMemory(bundle).view, [recorded["query"]], options)
    keywords = {keyword.id: keyword.score for keyword in answer.predictions[0].keywords}
    assert list(keywords) == list(recorded["keywords"])
    assert keywords == pytest.approx(recorded["keywords"], abs=SCORE_TOLERANCE)


def test_its_manifest_says_where_it_was_taken(bundle: Bundle) -> None:
    facts = bundle.manifest
    assert (facts.version, facts.memory.version) == (2, 4)
    assert facts.log == "0123456789abcdef" * 2


def test_its_labels_are_those_that_were_posted(bundle: Bundle) -> None:
    table = KnowledgeMemory(bundle, version=4).view.labels
    assert list(bundle.label_ids) == ["bottle", "lamp", "shoes", "stove", "tent", "mühle"]
    assert table.require("mühle") == Label(
        index=5,
        id="mühle",
        text="Kaffeemühle ☕",
        queries=("Kaffee am Morgen",),
        metadata={"bid": "0.30"},
        novel=True,
        version=1,
    )
    assert table.require("tent") == Label(
        index=4, id="tent", text="camping tent", metadata={"bid": "0.10"}, version=2
    )
    assert table.require("lamp") == Label(index=1, id="lamp", text="head lamp")


def test_a_label_that_it_holds_is_deleted_with_its_own_rows(bundle: Bundle) -> None:
    """The mill's row, its query's, and none of the click that the stove got too."""
    view = KnowledgeMemory(bundle, version=4).apply([DeleteLabel(sequence=5, id="mühle")])
    assert (view.version, view.dead_rows) == (5, 2)
    texts = list(bundle.instance_texts)
    rows = np.array([texts.index("Kaffee am Morgen"), texts.index("breakfast outdoors")])
    columns, counts = view.votes(rows)
    assert (columns.tolist(), counts.tolist()) == ([view.labels.column("stove")], [0, 1])


def test_the_fixture_is_small() -> None:
    size = sum(path.stat().st_size for path in HERE.rglob("bundle-v2/**/*") if path.is_file())
    assert size < 50_000
