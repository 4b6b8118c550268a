"""A bundle of 100,000 items can be opened, changed, replayed, listed and written as a snapshot."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import open_bundle
from service.core.bundle.item_files import INDEX
from service.core.index.libraries import IndexParameters
from service.core.items.item_memory import ItemMemory
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.page_cursor import PageCursor
from tests.support.serving import LocalService, local_service
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.encoder import DIMENSION
from tests.support.tiny.items import item_files_of

ITEMS = 100_000
POSTED = [{"id": f"posted {number}", "text": f"posted text {number}"} for number in range(900)]
ASKED = {"queries": ["warm boots", "lamp for two"], "top_k": 6, "explain": True}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many-items")
    index = IndexParameters(m=8, ef_construction=60)
    view = KnowledgeMemory(open_bundle(make_bundle(folder / "plain", index=index))).view
    keys = np.random.default_rng(0).standard_normal((ITEMS, DIMENSION)).astype(np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    ids = [f"item {number:05}" for number in range(ITEMS)]
    texts = [f"text of item {number}" for number in range(ITEMS)]
    files = item_files_of(folder, ids, texts, keys.astype(np.float16))
    view = replace(view, items=ItemMemory.of(files))
    write_snapshot(view, folder / "bundle", name="bundle", log="")
    return folder / "bundle"


def written_to(service: LocalService) -> None:
    """Post new items, replace one item of the bundle, and delete old and new ones."""
    service.post("/items", {"items": POSTED})
    service.post("/items", {"items": [{"id": "item 00007", "text": "another text"}]})
    for item_id in ("item 00000", "item 99999", "posted 3"):
        assert service.request("DELETE", f"/items/{item_id}").status_code == 200


def test_it_is_opened_written_to_replayed_and_snapshot(bundle: Path, tmp_path: Path) -> None:
    with local_service(bundle, tmp_path / "state") as service:
        assert (bundle / INDEX).exists()
        written_to(service)
        memory = service.get("/info").json()["memory"]
        assert memory["items"] == ITEMS + len(POSTED) - 3
        answers = service.post("/predict", ASKED).json()["results"]
        named = {**ASKED, "items": ["Text OF item 500", "posted 5", "another text"]}
        given = service.post("/predict", named).json()["results"]
        assert [item["id"] for item in given[0]["items"]] == [
            "item 00500",
            "posted 5",
            "item 00007",
        ]
        after = str(PageCursor.behind("item 99998"))
        last = service.get("/items", params={"after": after, "limit": 2}).json()
        assert [item["id"] for item in last["items"]] == ["posted 0", "posted 1"]

    with local_service(bundle, tmp_path / "state") as replayed:
        assert replayed.post("/predict", ASKED).json()["results"] == answers
        assert replayed.post("/predict", named).json()["results"] == given
        name = f"snapshot-{tmp_path.name}"
        assert replayed.post("/admin/snapshot", {"bundle": name}).status_code == 200
        assert replayed.post("/admin/reload", {"bundle": name}).status_code == 200
        assert (bundle.parent / name / INDEX).exists()
        assert replayed.get("/info").json()["memory"]["items"] == ITEMS + len(POSTED) - 3
        after = replayed.post("/predict", named).json()["results"]
        assert [result["items"] for result in after] == [result["items"] for result in given]
        first = replayed.get("/items", params={"limit": 1}).json()["items"]
        assert first == [{"id": "item 00001", "text": "text of item 1"}]
