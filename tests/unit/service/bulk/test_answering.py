"""The results for a file of queries equal those of `POST /predict` byte for byte."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from service.bulk.answering import results
from service.bulk.memory import open_memory
from service.bulk.query_file import FileQuery
from service.core.errors import InvalidInput
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
    options = loaded.bundle.manifest.options(PredictOptions(top_k=top_k, explain=explain))
    found = results(loaded, [FileQuery(text=query) for query in QUERIES], options)
    assert [query.text for query in found] == list(dict.fromkeys(QUERIES))
    assert any(result["keywords"] for result in found.values())
    for query, result in found.items():
        answer = loaded.predictor.predict(loaded.memory.view, [query.text], options)
        expected = result_answer(answer.predictions[0], explain=explain)
        assert orjson.dumps(result) == orjson.dumps(expected)
        assert ("items" in expected) == (explain and loaded.bundle.items is not None)


def test_each_query_attends_to_its_own_items(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", items=ITEMS)
    loaded = open_memory(bundle, None, EngineSettings(), until=0)
    options = loaded.bundle.manifest.options(PredictOptions(top_k=6))
    asked = [
        FileQuery(text=text, items=items)
        for text in ("tent", "warm boots", "tent")
        for items in (None, ("water",), (), ("light", "camp"))
    ]
    found = results(loaded, asked, options)
    assert len(found) == 8
    for query, result in found.items():
        alone = loaded.predictor.predict(
            loaded.memory.view, [query.text], replace(options, items=query.items)
        )
        assert result == result_answer(alone.predictions[0], explain=False)
    scores = [str(result["keywords"]) for result in found.values()]
    assert len(set(scores)) == 8
    with pytest.raises(InvalidInput, match="no item has the id or text 'nowhere'"):
        results(loaded, [FileQuery(text="tent", items=("nowhere",))], options)
