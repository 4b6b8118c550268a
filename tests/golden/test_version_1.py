"""What version 1 wrote stays readable, and a bundle of version 1 answers as on its first day.

The files were made by `write_version_1`. Scores may differ by 1e-5: another build of the ONNX
runtime or of the index library adds in another order.
"""

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.label_log import open_log
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.types import PredictOptions, Role

HERE = Path(__file__).parent
BUNDLE = HERE / "bundle-v1"
SCORE_TOLERANCE = 1e-5
ANSWERS = orjson.loads((HERE / "bundle-v1.answers.json").read_bytes())


@pytest.mark.parametrize(
    "recorded", ANSWERS, ids=lambda answer: f"{answer['query']}-{answer['memorization']}"
)
@pytest.mark.parametrize("exact", [False, True])
def test_a_bundle_of_version_1_answers_as_recorded(recorded: dict, exact: bool) -> None:
    bundle = open_bundle(BUNDLE)
    assert bundle.manifest.version == 1
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    predictor = Predictor(encoder, tau=bundle.manifest.predictor.tau)
    options = PredictOptions(top_k=4, depth=5, memorization=recorded["memorization"], exact=exact)
    answer = predictor.predict(KnowledgeMemory(bundle).view, [recorded["query"]], options)
    keywords = {keyword.id: keyword.score for keyword in answer.predictions[0].keywords}
    assert list(keywords) == list(recorded["keywords"])
    assert keywords == pytest.approx(recorded["keywords"], abs=SCORE_TOLERANCE)


def test_the_stored_keys_are_those_that_its_encoder_still_gives() -> None:
    bundle = open_bundle(BUNDLE)
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    for role, texts, start in (
        (Role.QUERY, list(bundle.instance_texts), 0),
        (Role.LABEL, list(bundle.label_texts), bundle.instances),
    ):
        stored = bundle.keys[start : start + len(texts)].astype(np.float32)
        assert encode(encoder, texts, role=role) == pytest.approx(stored, abs=1e-3)


def test_a_label_log_of_version_1_is_read(tmp_path: Path) -> None:
    """On a copy, which becomes a log of the present format."""
    copy = Path(shutil.copytree(HERE / "label-log-v1", tmp_path / "log"))
    with closing(open_log(copy, create=False)) as log:
        assert log.id == ""
        assert len(list(log.read())) == 2
    with closing(open_log(copy)) as log:
        kayak, tent = log.read()
    assert kayak.body == {
        "id": "kayak",
        "text": "sea kayak",
        "queries": ["paddle"],
        "metadata": {"bid": "0.30"},
    }
    assert (kayak.sequence, kayak.kind, kayak.encoder) == (1, "label.put", "f" * 64)
    assert kayak.vectors.size == 2 * 16
    assert tent.body["text"] == "Zelt für zwei ⛺"
    assert (tent.sequence, tent.vectors.size) == (2, 16)


def test_the_fixtures_are_small() -> None:
    size = sum(path.stat().st_size for path in HERE.rglob("*v1*/**/*") if path.is_file())
    assert size < 100_000
