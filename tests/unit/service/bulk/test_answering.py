"""Results of a file are byte for byte those of `POST /predict`."""

from pathlib import Path

import orjson
import pytest

from service.bulk.answering import answer, results
from service.bulk.memory import open_memory
from service.core.types import PredictOptions
from service.http.responses import result_answer
from service.settings import EngineSettings
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.items import ITEMS

QUERIES = ["tent", "warm boots", "tent", "lamp for two", 'a "b"\n é']


@pytest.fixture(params=["without items", "with items"])
def bundle(request: pytest.FixtureRequest, tiny_bundle_folder: Path, tmp_path: Path) -> Path:
    if request.param == "without items":
        return tiny_bundle_folder
    return make_bundle(tmp_path / "with-items", items=ITEMS)


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("top_k", [1, 100])
def test_results_have_the_bytes_of_http(bundle: Path, top_k: int, explain: bool) -> None:
    loaded = open_memory(bundle, None, EngineSettings(), until=0)
    options = loaded.options(PredictOptions(top_k=top_k, explain=explain))
    predictions = answer(loaded, QUERIES, options)
    found = results(loaded, QUERIES, options)
    assert list(found) == list(predictions) == list(dict.fromkeys(QUERIES))
    assert any(result["keywords"] for result in found.values())
    for query, prediction in predictions.items():
        expected = result_answer(prediction, explain=explain)
        assert orjson.dumps(found[query]) == orjson.dumps(expected)
        assert ("items" in expected) == (explain and loaded.bundle.items is not None)
