"""A label log that belongs to other data is refused in one sentence, unless it is allowed."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import complaint, run
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service
from tests.support.tiny.bundles import Catalogue, make_bundle

TOOLS = Catalogue(
    labels={"saw": "hand saw", "axe": "ice axe", "tent": "camping tent"},
    instances={"cut wood": ("saw",)},
)
SAID = "the label log was begun for other data: 3 of the 4 labels that its clicks, changes"


@pytest.fixture(scope="module")
def shelf(tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two bundles of different data, `goods` and `tools`."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "goods").symlink_to(tiny_bundle_folder)
    make_bundle(folder / "tools", TOOLS)
    return folder


@pytest.fixture(scope="module")
def state(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state of a running service of `goods` that has learned a label and clicks."""
    state = tmp_path_factory.mktemp("goods") / "state"
    with local_service(shelf / "goods", state) as service:
        learn(service)
        yield state


def learn(service: LocalService) -> None:
    kayak = {"labels": [{"id": "kayak", "text": "sea kayak"}]}
    assert service.post("/labels", kayak).status_code == 200
    for label in ("kayak", "boots", "lamp", "stove", "tent"):
        click = {"instances": [{"query": f"a good {label}", "labels": [label]}]}
        assert service.post("/instances", click).status_code == 200


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_start_on_a_state_of_other_data_is_refused(
    state: Path, shelf: Path, workers: str
) -> None:
    places = ("--bundle", shelf / "tools", "--state", state)
    said = complaint(run("service", "serve", *places, "--port", "0", "--workers", workers))
    assert said.startswith(SAID)
    assert "'boots', 'lamp', 'stove'" in said
    assert "--other-data" in said


def test_a_snapshot_of_other_data_is_refused_unless_it_is_allowed(
    state: Path, shelf: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new"
    places = ("--bundle", shelf / "tools", "--state", state, "--out", out)
    assert complaint(run("service", "snapshot", *places)).startswith(SAID)
    assert not out.exists()
    allowed = run("service", "snapshot", *places, "--other-data")
    assert (allowed.returncode, out.exists()) == (0, True)
    assert "3 clicks lose votes" in allowed.stderr


def test_a_start_may_be_allowed(state: Path, shelf: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "keymatch"):
        with local_service(shelf / "tools", state, other_data=True) as tools:
            assert tools.get("/labels/kayak").json()["clicked"]["total"] == 1
            assert tools.get("/labels/tent").json()["clicked"]["total"] == 1
            assert tools.get("/labels/boots").status_code == 404
            assert tools.post("/admin/snapshot", {"bundle": "both"}).status_code == 200
    assert [text for text in caplog.messages if "3 clicks lose votes" in text]
    with local_service(shelf / "both", state) as both:
        assert both.get("/labels/kayak").status_code == 200


def test_a_reload_of_other_data_is_refused_unless_it_is_allowed(
    shelf: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with local_service(shelf / "goods", state) as goods:
        learn(goods)
        problem = assert_problem(goods.post("/admin/reload", {"bundle": "tools"}), 422)
        assert problem["detail"].startswith(SAID)
        assert goods.get("/info").json()["bundle"]["name"] == "tiny"
        allowed = {"bundle": "tools", "other_data": True}
        assert goods.post("/admin/reload", allowed).status_code == 200
    with local_service(shelf / "goods", state) as again:  # the reload is in the log
        assert again.get("/info").json()["bundle"]["name"] == "tools"
