"""The results for a file of queries equal those of `POST /predict`."""

from dataclasses import replace
from pathlib import Path

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
    assert len({str(result["keywords"]) for result in found.values()}) == 8
    with pytest.raises(InvalidInput, match="no item has the id or text 'nowhere'"):
        results(loaded, [FileQuery(text="tent", items=("nowhere",))], options)
