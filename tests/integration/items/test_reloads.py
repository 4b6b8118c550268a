"""Posted items stay in the log when bundles with and without an item memory are reloaded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import complaint, run
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.items import ITEMS

SLEEP = {"id": "sleep", "text": "somewhere to sleep"}
NO_ITEMS = "the bundle that is served has no item memory"


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder of two bundles of the same data: one with an item memory, and one without."""
    make_bundle(tmp_path / "shelf" / "with-items", items=ITEMS)
    make_bundle(tmp_path / "shelf" / "plain")
    return tmp_path / "shelf"


@pytest.fixture
def service(shelf: Path, tmp_path: Path) -> Iterator[LocalService]:
    with local_service(shelf / "with-items", tmp_path / "state") as served:
        yield served


def reload(service: LocalService, name: str) -> None:
    answer = service.post("/admin/reload", {"bundle": name})
    assert answer.status_code == 200, answer.text
    assert service.get("/info").json()["bundle"]["name"] == name


def put_and_delete(service: LocalService) -> None:
    assert service.post("/items", {"items": [SLEEP]}).status_code == 200
    assert service.request("DELETE", "/items/feet").status_code == 200


def ids(service: LocalService) -> list[str]:
    return [item["id"] for item in service.get("/items").json()["items"]]


def seen(service: LocalService) -> Any:
    """Return answers with predicted items, with one given item, and without items."""
    asked = {"queries": ["somewhere to sleep", "tent"], "top_k": 6}
    return [
        service.post("/predict", {**asked, "items": items}).json()["results"]
        for items in (None, ["sleep"], [])
    ]


def test_items_put_before_are_there_again_with_a_bundle_that_takes_them(
    service: LocalService,
) -> None:
    put_and_delete(service)
    service.post("/instances", {"instances": [{"query": "nap", "labels": ["tent"]}]})
    before = seen(service)

    reload(service, "plain")
    for refused in (
        service.post("/items", {"items": [SLEEP]}),
        service.post("/predict", {"queries": ["tent"], "items": ["sleep"]}),
        service.post("/predict", {"queries": ["tent"], "items": []}),
        service.get("/items"),
        service.get("/items/sleep"),
        service.request("DELETE", "/items/sleep"),
    ):
        problem = assert_problem(refused, 422, field="items")
        assert problem["detail"] == NO_ITEMS
    assert service.get("/info").json()["memory"]["items"] == 0
    assert service.post("/predict", {"queries": ["nap"]}).json()["results"][0]["keywords"]
    service.post("/labels", {"labels": [{"id": "hut", "text": "mountain hut"}]})

    reload(service, "with-items")
    assert ids(service) == ["camp", "light", "sleep", "water"]
    assert service.request("DELETE", "/labels/hut").status_code == 200
    assert seen(service) == before


def test_a_log_is_not_cut_by_a_snapshot_that_holds_no_items(
    service: LocalService, shelf: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    put_and_delete(service)
    service.post("/labels", {"labels": [{"id": "hut", "text": "mountain hut"}]})
    before = seen(service)
    reload(service, "plain")
    assert service.post("/admin/snapshot", {"bundle": "plain-2"}).json()["version"] == 4
    reload(service, "plain-2")

    refused = run("service", "log", "--state", state, "--compact", shelf / "plain-2")
    assert refused.returncode == 1, refused.stdout
    said = complaint(refused)
    assert "nothing was cut" in said
    assert "1 item that was put and 1 deletion of an item are only in" in said
    assert "--drop-items" in said
    reload(service, "with-items")
    assert seen(service) == before

    # The error message recommends a snapshot that holds both labels and items.
    written = run(
        "service", "snapshot", "--bundle", shelf / "with-items", "--state", state, "--out",
        shelf / "held",
    )  # fmt: skip
    assert written.returncode == 0, written.stderr
    reload(service, "held")
    checked = run("service", "log", "--state", state, "--check")
    assert "intact, 7 events, 1 to 7" in checked.stdout
    assert "item.put 1, item.delete 1" in checked.stdout
    cut = run("service", "log", "--state", state, "--compact", shelf / "held")
    assert "6 events were cut, 1 are kept" in cut.stdout, cut.stderr
    assert service.post("/items", {"items": [SLEEP]}).json()["items"][0]["status"] == "unchanged"
    service.engine.close()
    with local_service(shelf / "with-items", state) as restarted:
        assert restarted.get("/info").json()["bundle"]["name"] == "held"
        assert ids(restarted) == ["camp", "light", "sleep", "water"]
        assert seen(restarted) == before


def test_items_are_cut_where_that_is_wanted(
    service: LocalService, shelf: Path, tmp_path: Path
) -> None:
    put_and_delete(service)
    reload(service, "plain")
    assert service.post("/admin/snapshot", {"bundle": "plain-2"}).status_code == 200
    reload(service, "plain-2")
    service.engine.close()
    with local_service(shelf / "plain", tmp_path / "state") as restarted:
        # Reloads in the log are ignored if the service starts with another bundle.
        assert_problem(restarted.get("/items"), 422, field="items")
    arguments = ("--state", tmp_path / "state", "--compact", shelf / "plain-2", "--drop-items")
    cut = run("service", "log", *arguments)
    assert cut.returncode == 0, cut.stderr
    assert "3 events were cut, 1 are kept" in cut.stdout
