"""Snapshots and reloads: they succeed, or fail without a change to what is served."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from service.bulk.memory import find_log
from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle
from service.core.errors import LogError
from service.engine import bundle_admin
from tests.support.disks import SmallDisk
from tests.support.disks import small_disk as small_disk
from tests.support.holding import hold
from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.serving import LocalService, local_service
from tests.support.tiny.bundles import write_document

SNAPSHOT, RELOAD = "/admin/snapshot", "/admin/reload"
AXE = {"labels": [{"id": "axe", "text": "ice axe", "metadata": {"shop": "acme"}}]}
FAILED = 'keymatch_reloads_total{outcome="failed"}'
OK = 'keymatch_reloads_total{outcome="ok"}'


def seen(service: LocalService, version: int) -> Any:
    """Return all that a client can see of the memory except the bundle's name."""
    asked = {"queries": ["ice axe", "tent"], "explain": True, "depth": 100, "min_version": version}
    return service.post("/predict", asked).json()["results"]


def name_of(service: LocalService) -> str:
    return service.get("/info").json()["bundle"]["name"]


def counted(service: LocalService, series: str) -> float:
    lines = service.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(series))


# Snapshots -------------------------------------------------------------------------------


def test_a_snapshot_holds_what_was_learned_and_is_served_after_a_reload_and_a_restart(
    served: LocalService, shelf: Path, tmp_path: Path
) -> None:
    assert served.post("/labels", AXE).json()["version"] == 1
    assert served.request("DELETE", "/labels/lamp").json() == {"version": 2}
    before = seen(served, 2)
    answer = served.post(SNAPSHOT, content=b"", headers={"content-type": "application/json"})
    assert answer.json() == {"bundle": "tiny-v2", "version": 2}
    assert open_bundle(shelf / "tiny-v2").manifest.memory.version == 2
    answer = served.post(RELOAD, {"bundle": "tiny-v2"})
    assert answer.json()["bundle"] == "tiny-v2"
    assert name_of(served) == "tiny-v2"
    assert seen(served, 2) == before
    assert_problem(served.get("/labels/lamp"), 404)
    assert served.get("/labels/axe").json()["metadata"] == {"shop": "acme"}
    assert counted(served, OK) == 1
    assert served.post("/labels", AXE).json()["labels"][0]["status"] == "unchanged"
    served.engine.close()
    with local_service(shelf / "tiny", tmp_path / "state") as restarted:
        assert name_of(restarted) == "tiny-v2"
        assert seen(restarted, answer.json()["version"]) == before


def refusal(service: LocalService, route: str, name: str) -> str:
    """Send a bundle's name that must be refused; returns why."""
    problem = assert_problem(service.post(route, {"bundle": name}), 422, field="bundle")
    return problem["errors"][0]["message"]


def test_names_and_links_cannot_leave_the_shelf(
    served: LocalService, shelf: Path, tmp_path: Path
) -> None:
    outside, missing = shelf.parent / "outside", shelf.parent / "missing"
    shutil.copytree(shelf / "other", outside)
    (shelf / "link").symlink_to(outside)
    (shelf / "dangling").symlink_to(missing)
    (shelf / "inside").symlink_to("other")
    for route in (SNAPSHOT, RELOAD):
        for name in ("../next", "", ".hidden", "a/b", "x" * 200):
            refusal(served, route, name)
        for name in ("link", "dangling"):
            assert "leads out" in refusal(served, route, name)
    assert "exists already" in refusal(served, SNAPSHOT, "other")
    assert not missing.exists()
    assert served.post(RELOAD, {"bundle": "inside"}).status_code == 200
    assert served.post(RELOAD, {"bundle": "other"}).status_code == 200
    state = str(tmp_path / "state")
    assert find_log(state, shelf / "tiny").served == shelf / "other"
    (shelf / "other").rename(shelf.parent / "moved")
    (shelf / "other").symlink_to(shelf.parent / "moved")  # a start opens no link that leads out
    assert find_log(state, shelf / "tiny").served == shelf / "tiny"


REASONS = {"full": "No space left on device", "readonly": "Read-only file system"}


@pytest.mark.parametrize("condition", REASONS)
def test_a_snapshot_that_cannot_be_written(
    tiny_bundle_folder: Path,
    tmp_path: Path,
    small_disk: SmallDisk,
    caplog: pytest.LogCaptureFixture,
    condition: str,
) -> None:
    bundle = Path(shutil.copytree(tiny_bundle_folder, small_disk.folder / "tiny"))
    with local_service(bundle, tmp_path / "state") as service:
        assert service.post("/labels", AXE).status_code == 200
        with getattr(small_disk, condition)():
            answer = service.post(SNAPSHOT, {"bundle": "next"})
            problem = assert_problem(answer, 503)
            assert problem["title"] == "The snapshot cannot be written"
            cause = f"the folder of bundles cannot be written: {REASONS[condition]}; "
            assert problem["detail"].startswith(cause)
            assert "--bundles" in problem["detail"]
            assert_no_internals(answer)
            assert service.post("/predict", {"queries": ["tent"]}).status_code == 200
            assert service.post("/labels", AXE).status_code == 200
            assert {path.name for path in small_disk.folder.iterdir()} <= {"tiny", "filler"}
        [said] = [r for r in caplog.records if r.message == "The snapshot cannot be written"]
        assert REASONS[condition] in said.__dict__["cause"]
        assert service.post(SNAPSHOT, {"bundle": "next"}).status_code == 200


def test_a_bundle_on_a_read_only_disk_is_saved_elsewhere_and_returned_to(
    tiny_bundle_folder: Path, tmp_path: Path, small_disk: SmallDisk
) -> None:
    """In a container, `/bundle` is read-only, and `/bundles` is a volume."""
    bundle = Path(shutil.copytree(tiny_bundle_folder, small_disk.folder / "bundle"))
    bundles = tmp_path / "bundles"
    with (
        small_disk.readonly(),
        local_service(bundle, tmp_path / "state", bundles=bundles) as service,
    ):
        assert service.post("/labels", AXE).status_code == 200
        assert service.post(SNAPSHOT, {}).json() == {"bundle": "bundle-v1", "version": 1}
        assert (bundles / "bundle-v1").is_dir()
        assert service.post(RELOAD, {"bundle": "bundle-v1"}).status_code == 200
        assert service.post(RELOAD, {"bundle": "bundle"}).status_code == 200
        assert service.get("/info").json()["bundle"]["name"] == "tiny"
        assert service.get("/labels/axe").status_code == 200
        unknown = assert_problem(service.post(RELOAD, {"bundle": "none"}), 422)
        assert unknown["detail"].endswith("there are: bundle, bundle-v1")


# Reloads ---------------------------------------------------------------------------------


def lacking(bundle: Path) -> None:
    (bundle / "keys.npy").unlink()


def altered(bundle: Path) -> None:
    content = bytearray((bundle / "keys.npy").read_bytes())
    content[-1] ^= 1
    (bundle / "keys.npy").write_bytes(content)


def of_tomorrow(bundle: Path) -> None:
    document = orjson.loads((bundle / manifest.FILE_NAME).read_bytes())
    write_document(bundle, {**document, "version": 99})


def test_bundles_that_must_not_be_served(
    served: LocalService, shelf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = seen(served, 0)
    (shelf / "data").mkdir()  # neither of these is a bundle
    (shelf / "data" / manifest.FILE_NAME).write_text('{"name": "data"}')
    (shelf / "empty").mkdir()
    answer = served.post(RELOAD, {"bundle": "tomorrow"})
    problem = assert_problem(answer, 422)
    assert problem["title"] == "Bundle missing"
    assert problem["detail"] == "there is no bundle named 'tomorrow'; there are: other, tiny"
    assert_no_internals(answer)
    damages = {
        lacking: "other/",
        altered: "other/keys.npy",
        of_tomorrow: "other/manifest.json",
    }
    for refused, (damage, named) in enumerate(damages.items(), start=2):
        shutil.rmtree(shelf / "other")
        damage(shutil.copytree(shelf / "tiny", shelf / "other"))
        caplog.clear()
        answer = served.post(RELOAD, {"bundle": "other"})
        problem = assert_problem(answer, 422)
        assert problem["title"] == ("Bundle missing" if damage is lacking else "Bundle refused")
        assert_no_internals(answer)
        assert named in problem["detail"] and str(shelf) not in problem["detail"]
        [said] = [r for r in caplog.records if r.message == problem["title"]]
        assert str(shelf / "other") in said.__dict__["cause"]
        assert counted(served, FAILED) == refused
    assert (name_of(served), seen(served, 0)) == ("tiny", before)
    assert served.post("/labels", AXE).json()["version"] == 1  # no reload left an event


def test_one_reload_at_a_time(
    served: LocalService,
    monkeypatch: pytest.MonkeyPatch,
    aside: Callable[..., Future[httpx.Response]],
) -> None:
    held = hold(monkeypatch, bundle_admin, "load_bundle")
    first = aside(served.post, RELOAD, {"bundle": "other"})
    assert held.entered.wait(60)
    assert_problem(served.post(RELOAD, {"bundle": "other"}), 409)
    assert served.post("/labels", AXE).json()["version"] == 1  # during the reload
    held.released.set()
    assert first.result().json() == {"bundle": "other", "version": 2}  # as it was asked for
    assert served.get("/labels/axe").json()["text"] == "ice axe"


def test_a_reload_that_cannot_be_logged_changes_nothing(
    served: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise LogError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(served.engine._log, "exclusive", refuse)
        assert_problem(served.post(RELOAD, {"bundle": "other"}), 503)
    assert counted(served, FAILED) == 1
    assert served.post("/labels", AXE).json()["version"] == 1
    assert served.post(RELOAD, {"bundle": "other"}).json()["version"] == 2
