"""A bundle of version 3, with a learned lambda, answers as on its first day.

The files were made by `write_bundle_3`. Scores may differ by 1e-5: another build of the ONNX
runtime or of the index library adds in another order.
"""

from pathlib import Path

import orjson
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.types import PredictOptions

HERE = Path(__file__).parent
SCORE_TOLERANCE = 1e-5
ANSWERS = orjson.loads((HERE / "bundle-v3.answers.json").read_bytes())


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(HERE / "bundle-v3")


@pytest.mark.parametrize(
    "recorded", ANSWERS, ids=lambda answer: f"{answer['query']}-{answer['memorization']}"
)
@pytest.mark.parametrize("exact", [False, True])
def test_a_bundle_of_version_3_answers_as_recorded(
    bundle: Bundle, recorded: dict, exact: bool
) -> None:
    facts = bundle.manifest.predictor
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    predictor = Predictor(encoder, tau=facts.tau, adaptive=facts.adaptive_memorization())
    options = PredictOptions(top_k=4, depth=5, memorization=recorded["memorization"], exact=exact)
    answer = predictor.predict(KnowledgeMemory(bundle).view, [recorded["query"]], options)
    keywords = {keyword.id: keyword.score for keyword in answer.predictions[0].keywords}
    assert list(keywords) == list(recorded["keywords"])
    assert keywords == pytest.approx(recorded["keywords"], abs=SCORE_TOLERANCE)


def test_its_manifest_says_what_was_learned(bundle: Bundle) -> None:
    facts = bundle.manifest
    assert (facts.version, facts.predictor.default_memorization) == (3, None)
    assert facts.predictor.adaptive is not None
    assert facts.predictor.adaptive.weights["agreement"] == 2.0


def test_the_fixture_is_small() -> None:
    size = sum(path.stat().st_size for path in HERE.rglob("bundle-v3/**/*") if path.is_file())
    assert size < 50_000
