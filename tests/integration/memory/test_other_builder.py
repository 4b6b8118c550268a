"""A replica that would seal other graphs than the bundle's builder is refused in one sentence."""

import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from service.core.bundle import manifest
from service.core.index.libraries import load_library
from tests.support.commands import complaint, run
from tests.support.http.problems import assert_problem
from tests.support.serving import local_service

OTHER = "faiss 1.14.3 AVX2"
SAID = rf"was built by {OTHER}, and this process has faiss [\d.]+ \w+, .*keymatch snapshot"


@pytest.fixture(scope="module")
def shelf(tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle `goods`, and the same made by another version and by an old one."""
    folder = tmp_path_factory.mktemp("shelf")
    for name, builder in (("goods", ""), ("other", OTHER), ("old", None)):
        shutil.copytree(tiny_bundle_folder, folder / name)
        facts = manifest.read(folder / name)
        if builder != "":
            index = replace(facts.index, builder=builder)
            manifest.write(replace(facts, index=index), folder / name)
    return folder


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_replica_with_another_builder_does_not_start(
    shelf: Path, postgres_url: str, workers: str
) -> None:
    places = ("--bundle", shelf / "other", "--state", postgres_url)
    ended = run("service", "serve", *places, "--port", "0", "--workers", workers)
    assert re.search(SAID, complaint(ended))


def test_a_new_bundle_of_the_same_log_is_served_instead(
    shelf: Path, postgres_url: str, tmp_path: Path
) -> None:
    with local_service(shelf / "goods", postgres_url) as service:
        kayak = {"labels": [{"id": "kayak", "text": "sea kayak"}]}
        assert service.post("/labels", kayak).status_code == 200
    out = tmp_path / "new"
    ended = run(
        *("service", "snapshot", "--bundle", shelf / "other"),
        *("--state", postgres_url, "--out", out),
    )
    assert ended.returncode == 0, ended.stderr
    with local_service(out, postgres_url) as service:
        assert service.get("/labels/kayak").status_code == 200


def test_a_reload_of_another_builders_bundle_is_refused(
    shelf: Path, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with local_service(shelf / "goods", postgres_url) as service:
        answer = service.post("/admin/reload", {"bundle": "other"})
        assert assert_problem(answer, 422)["title"] == "Bundle refused"
        builder = service.get("/info").json()["bundle"]["index"]["builder"]
        assert builder == load_library("faiss").builder()
    [said] = [record for record in caplog.records if record.message == "Bundle refused"]
    assert re.search(SAID, said.__dict__["cause"])


def test_one_machine_may_serve_it(shelf: Path, tmp_path: Path) -> None:
    """Its processes share sealed segments, whose key contains the builder."""
    with local_service(shelf / "other", tmp_path / "state") as service:
        assert service.post("/predict", {"queries": ["tent"]}).status_code == 200


def test_an_old_bundle_is_served_with_a_warning(
    shelf: Path, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "keymatch"):
        with local_service(shelf / "old", postgres_url) as service:
            assert service.post("/predict", {"queries": ["tent"]}).status_code == 200
    assert "does not say which index library replicas must have" in caplog.text
