"""A bundle in parts, served by real shards on Ray's local cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from service.child_server import ServerFailed
from service.core.bundle import manifest
from tests.support.cluster_here import need_ray
from tests.support.serving import ServerProcess, server_process
from tests.support.tiny.bundles import make_bundle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 2
QUERIES = ["boots for winter", "light", "sea kayak"]


@pytest.fixture(autouse=True)
def _ray() -> None:
    need_ray()


@contextmanager
def served(bundle: Path, state: Path, *options: str) -> Iterator[ServerProcess]:
    with TemporaryDirectory() as short:  # Ray has sockets there, whose paths must be short
        env = {"RAY_TMPDIR": short}
        log = state.with_suffix(".log")
        with server_process(bundle, state, log, *options, env=env) as server:
            yield server


def results(server: ServerProcess, **more: object) -> Any:
    asked = {"queries": QUERIES, "explain": True, **more}
    answer = server.client.post("/predict", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_it_is_served_snapshotted_and_reloaded(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundles/goods", parts=COUNT)
    label = {"id": "kayak", "text": "sea kayak", "queries": ["paddle"]}
    with (
        served(bundle, tmp_path / "divided", "--shards", str(COUNT)) as divided,
        served(bundle, tmp_path / "whole") as whole,
    ):
        for server in (divided, whole):
            posted = server.client.post("/labels", json={"labels": [label]})
            assert posted.status_code == 200, posted.text
        before = results(divided, min_version=1)
        assert before == results(whole, min_version=1)
        ready = divided.client.get("/health/ready").json()
        assert ready["shards"]["answering"] == COUNT
        assert all(shard["built"] for shard in divided.client.get("/info").json()["shards"])
        written = divided.client.post("/admin/snapshot", json={"bundle": "next"})
        assert written.status_code == 200, written.text
        assert len(manifest.read(tmp_path / "bundles/next").parts or ()) == COUNT
        reloaded = divided.client.post("/admin/reload", json={"bundle": "next"})
        assert reloaded.status_code == 200, reloaded.text
        assert divided.client.get("/info").json()["bundle"]["name"] == "next"
        after = results(divided)
        assert [texts(one) for one in after] == [texts(one) for one in before]


def texts(result: dict[str, Any]) -> list[tuple[str, float]]:
    """The labels and scores of one result; rows have other numbers after a snapshot."""
    return [(keyword["id"], pytest.approx(keyword["score"])) for keyword in result["keywords"]]


def test_another_number_of_shards_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundles/goods", parts=COUNT)
    said = "is in 2 parts, which cannot be divided into 3: serve it with --shards 2"
    with (
        pytest.raises(ServerFailed, match=said),
        served(bundle, tmp_path / "state", "--shards", "3"),
    ):
        pass
