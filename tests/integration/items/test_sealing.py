"""Posted items are sealed while the service runs; a restart and a snapshot hold the same items."""

import re
from pathlib import Path
from typing import Any

from service.bulk.memory import find_log, open_memory
from service.settings import EngineSettings
from tests.support.serving import LocalService, local_service, wait_for
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.items import ITEMS

POSTED = 19  # in blocks of 2: segments of 8, 8 and 2 items, and 1 live item
SETTINGS = {"seal_items": 2}
QUERIES = ["somewhere to sleep", "item 7", "lamp"]


def put(service: LocalService, first: int, stop: int) -> None:
    items = [{"id": f"n{number}", "text": f"item {number}"} for number in range(first, stop)]
    assert service.post("/items", {"items": items}).status_code == 200


def kinds(service: LocalService) -> dict[str, int]:
    """Return the number of items of each kind from the metrics."""
    text = service.get("/metrics").text
    return {
        kind: int(float(count))
        for kind, count in re.findall(r'keymatch_items\{kind="(\w+)"[^}]*\} (\S+)', text)
    }


def all_sealed(service: LocalService) -> None:
    wait_for(lambda: service.get("/info").json()["memory"]["unsealed_segments"] == 0)


def answers(service: LocalService) -> list[Any]:
    body = {"queries": QUERIES, "top_k": 6, "explain": True}
    return [service.post("/predict", body).json()["results"], service.get("/items").json()]


def test_posted_items_are_sealed_and_kept(tmp_path: Path) -> None:
    shelf, state = tmp_path / "shelf", tmp_path / "state"
    make_bundle(shelf / "with-items", items=ITEMS)
    with local_service(shelf / "with-items", state, **SETTINGS) as service:
        put(service, 0, 1)
        assert kinds(service) == {"base": 4, "sealed": 0, "live": 1, "tombstone": 0}
        put(service, 1, POSTED)
        all_sealed(service)
        assert kinds(service) == {"base": 4, "sealed": 18, "live": 1, "tombstone": 0}
        assert service.request("DELETE", "/items/n7").status_code == 200
        put(service, 3, 4)  # the same item again
        service.post("/items", {"items": [{"id": "n4", "text": "somewhere to sleep"}]})
        all_sealed(service)
        assert kinds(service) == {"base": 4, "sealed": 20, "live": 0, "tombstone": 2}
        before = answers(service)
        [sleep, *_], _ = before
        assert "n4" in [item["id"] for item in sleep["items"]]
        assert service.post("/admin/snapshot", {"bundle": "held"}).status_code == 200
        built = sorted(path.parent.name for path in (state / "segments").glob("*/segment.index"))

    # Answers for a file come from the same indexes.
    settings = EngineSettings(threads=1, **SETTINGS)
    place = find_log(str(state), shelf / "with-items")
    opened = open_memory(shelf / "with-items", place, settings, until=place.newest)
    items = opened.memory.view.items
    assert items is not None and items.posted.sealed_count == 20

    with local_service(shelf / "with-items", state, **SETTINGS) as restarted:
        all_sealed(restarted)
        assert kinds(restarted) == {"base": 4, "sealed": 20, "live": 0, "tombstone": 2}
        assert answers(restarted) == before
        found = sorted(path.parent.name for path in (state / "segments").glob("*/segment.index"))
        assert set(found) <= set(built), "an index that lies on disk is not built again"
        put(restarted, 40, 43)
        assert restarted.post("/admin/reload", {"bundle": "held"}).status_code == 200
        all_sealed(restarted)
        assert kinds(restarted) == {"base": 22, "sealed": 2, "live": 1, "tombstone": 0}
        held = [item["id"] for item in restarted.get("/items").json()["items"]]
        assert {"n40", "n41", "n42", "n4"} <= set(held) and "n7" not in held
