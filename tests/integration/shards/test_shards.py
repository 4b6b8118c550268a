"""Fronts and shards over real connections, in this process."""

import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from service.core.bundle import manifest
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.errors import BundleUnsupported, LogError, ShardsUnavailable
from service.core.index.key_parts import KeyShare
from service.core.label_log import LabelLog, open_log
from service.core.memory.shards import EVERYTHING, KeySearch
from service.settings import EngineSettings
from service.shards.front import HEDGE_SECONDS, Address, KnownPlaces, SocketShards
from service.shards.shard import Shard
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service
from tests.support.tiny.bundles import INSTANCES, LABELS, make_bundle
from tests.support.waiting import wait_for

COUNT = 3
SETTINGS = EngineSettings(threads=1, shard_timeout_ms=30_000)
ROWS = len(LABELS) + len(INSTANCES)  # of the bundle
QUERIES = ["boots for winter", "light", "a tent to sleep in"]


class Running:
    """The shards of one bundle and log, and where their fronts look for them."""

    def __init__(self, bundle: Path, state: Path) -> None:
        open_log(state).close()
        self.bundle, self.state = bundle, state
        self.shards: dict[tuple[int, int], Shard] = {}
        self.others: dict[int, list[Address]] = {}  # addresses to ask first
        self.settings = SETTINGS

    def start(self, index: int, replica: int = 0) -> Shard:
        share = KeyShare(index=index, count=COUNT)
        shard = Shard(self.bundle, self.state, share=share, settings=self.settings)
        self.shards[index, replica] = shard
        return shard

    def stop(self, index: int, replica: int = 0) -> None:
        self.shards.pop((index, replica)).close()

    def known(self) -> KnownPlaces:
        places: list[list[Address]] = [list(self.others.get(index, ())) for index in range(COUNT)]
        for (index, _), shard in sorted(self.shards.items()):
            places[index].append(shard.address)
        return KnownPlaces(places=places, written=1e12)

    def open(self, bundle: Bundle, label_log: LabelLog, _settings: EngineSettings) -> SocketShards:
        return SocketShards(
            self.known,
            bundle=manifest.fingerprint(bundle.manifest),
            log=label_log.id,
            dimension=bundle.manifest.encoder.dimension,
            settings=self.settings,
        )


@pytest.fixture
def running(tiny_bundle_folder: Path, tmp_path: Path) -> Iterator[Running]:
    running = Running(tiny_bundle_folder, tmp_path / "state")
    for index in range(COUNT):
        running.start(index)
    yield running
    for shard in list(running.shards.values()):
        shard.close()


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("parts") / "bundle", parts=COUNT)


@pytest.fixture
def front(running: Running) -> Iterator[LocalService]:
    with local_service(running.bundle, running.state, open_shards=running.open) as service:
        yield service


@contextmanager
def silent_place() -> Iterator[Address]:
    """A port that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Address(*listening.getsockname(), "")


def results(service: LocalService, **more: object) -> object:
    answer = service.post("/predict", {"queries": QUERIES, "explain": True, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_answers_are_those_of_one_process(
    running: Running, front: LocalService, tmp_path: Path
) -> None:
    label = {"id": "kayak", "text": "sea kayak", "queries": ["paddle"], "metadata": {"bid": "x"}}
    with local_service(running.bundle, tmp_path / "whole") as whole:
        for service in (front, whole):
            assert service.post("/labels", {"labels": [label]}).status_code == 200
            click = {"query": "rowing", "labels": ["kayak", "boots"], "weight": 3}
            assert service.post("/instances", {"instances": [click]}).status_code == 200
            assert service.request("DELETE", "/labels/lamp").status_code == 200
        for more in ({}, {"filter": {"all": [{"field": "bid", "eq": "x"}]}}, {"diversity": 0.5}):
            assert results(front, min_version=3, **more) == results(whole, **more)
        asked = {"queries": ["rowing"], "min_version": 3}
        [found] = front.post("/predict", asked).json()["results"]
        assert "kayak" in [keyword["id"] for keyword in found["keywords"][:2]]


def test_shards_open_their_parts_and_a_front_opens_none(
    in_parts: Path, running: Running, front: LocalService, tmp_path: Path
) -> None:
    """Each on a machine that has the files it needs, and no others."""
    state = tmp_path / "parts"
    divided = Running(in_parts, state)
    try:
        for index in range(COUNT):
            kept = in_parts / f"parts/{index}-of-{COUNT}"
            own = tmp_path / f"machine-{index}"
            shutil.copytree(in_parts, own, ignore=shutil.ignore_patterns("parts"))
            shutil.copytree(kept, own / kept.relative_to(in_parts))
            divided.bundle = own
            shard = divided.start(index)
            assert shard.built
        divided.bundle = Path(
            shutil.copytree(in_parts, tmp_path / "front", ignore=shutil.ignore_patterns("parts"))
        )
        with local_service(divided.bundle, state, open_shards=divided.open) as parted:
            for service in (front, parted):
                label = {"id": "kayak", "text": "sea kayak", "queries": ["paddle"]}
                assert service.post("/labels", {"labels": [label]}).status_code == 200
            assert results(parted, min_version=1) == results(front, min_version=1)
    finally:
        for shard in list(divided.shards.values()):
            shard.close()


def test_a_bundle_in_other_parts_is_refused(in_parts: Path, tmp_path: Path) -> None:
    open_log(tmp_path / "state").close()
    share = KeyShare(index=0, count=2)
    with pytest.raises(
        BundleUnsupported, match="in 3 parts, which cannot be divided into 2: serve"
    ):
        Shard(in_parts, tmp_path / "state", share=share, settings=SETTINGS)


def test_what_shards_hold_is_shown(running: Running, front: LocalService) -> None:
    info = front.get("/info").json()
    assert [shard["version"] for shard in info["shards"]] == [0] * COUNT
    assert sum(shard["rows"] for shard in info["shards"]) == info["memory"]["base_rows"]
    ready = front.get("/health/ready").json()
    assert ready["shards"] == {"answering": 3, "of": 3, "replicas": 3, "attended": True}
    running.stop(1)
    ready = front.get("/health/ready").json()
    assert ready["status"] == "ready"
    assert ready["shards"] == {"answering": 2, "of": 3, "replicas": 2, "attended": True}
    assert front.get("/info").json()["shards"][1] is None


def test_keys_come_from_the_shards_that_hold_them(running: Running) -> None:
    """Other shards then hold none, and answer so."""
    bundle = open_bundle(running.bundle)
    with closing(open_log(running.state)) as label_log:
        shards = running.open(bundle, label_log, SETTINGS)
        for rows in ([], [0], [ROWS - 1, 3], range(ROWS)):
            wanted = np.array(rows, np.int64)
            assert np.array_equal(shards.vectors(0, wanted), bundle.keys[wanted])


def test_a_missing_shard_is_a_503_until_it_is_back(running: Running, front: LocalService) -> None:
    before = results(front)
    running.stop(2)
    refused = front.post("/predict", {"queries": QUERIES})
    assert_problem(refused, 503)
    said = refused.json()["detail"]
    assert said == "1 of 3 shards do not answer: none of 0 known replicas of shard 2 is there"
    posted = front.post("/labels", {"labels": [{"text": "sea kayak"}]})
    assert posted.status_code == 200  # writes need no shard
    assert front.request("DELETE", "/labels/sea kayak").status_code == 200
    running.start(2)
    assert results(front, min_version=2) == before


def test_answers_may_be_partial(running: Running) -> None:
    running.settings = replace(SETTINGS, partial_answers=True)
    with local_service(running.bundle, running.state, open_shards=running.open) as front:
        [first, *_] = front.post("/predict", {"queries": QUERIES}).json()["results"]
        assert "partial" not in first
        running.stop(0)
        answer = front.post("/predict", {"queries": QUERIES}).json()
        assert all(result["partial"] and result["keywords"] for result in answer["results"])
        running.stop(1)
        running.stop(2)
        assert_problem(front.post("/predict", {"queries": QUERIES}), 503)


def test_another_replica_answers(running: Running, front: LocalService) -> None:
    before = results(front)
    running.start(1, replica=1)
    running.stop(1)
    assert results(front) == before


def test_a_slow_replica_is_not_waited_for(running: Running, front: LocalService) -> None:
    before = results(front)
    with silent_place() as place:
        running.others[0] = [place]
        start = monotonic()
        for _ in range(4):  # replicas take turns
            assert results(front) == before
        assert HEDGE_SECONDS < monotonic() - start < SETTINGS.shard_timeout_ms / 1000


def test_a_replica_that_comes_while_a_question_waits_is_asked(
    running: Running, front: LocalService
) -> None:
    before = results(front)
    running.stop(0)
    with socket.create_server(("127.0.0.1", 0)) as dying, ThreadPoolExecutor(1) as threads:
        running.others[0] = [Address(*dying.getsockname(), "")]
        asked = threads.submit(results, front)
        connection, _ = dying.accept()
        running.start(0)
        connection.close()
        assert asked.result() == before


def test_shards_of_another_bundle_or_log_are_refused(
    running: Running, make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    other = make_bundle(tau=0.2, name="other")
    for bundle, state, what in (
        (other, running.state, "bundle"),
        (running.bundle, tmp_path / "elsewhere", "log"),
    ):
        with closing(open_log(state)) as label_log:
            shards = running.open(open_bundle(bundle), label_log, SETTINGS)
            with pytest.raises(
                ShardsUnavailable, match=f"3 of 3 .*: this shard has another {what}"
            ):
                shards.search(search_in(version=0))


def test_a_version_that_never_comes_and_one_that_is_gone(
    running: Running, front: LocalService
) -> None:
    with closing(open_log(running.state)) as label_log:
        shards = running.open(open_bundle(running.bundle), label_log, SETTINGS)
        with pytest.raises(ShardsUnavailable, match="3 of 3 shards do not answer"):
            shards.search(search_in(version=7))
        stream = b"".join(b'{"text": "label %d"}\n' % number for number in range(300))
        sent = front.request(
            "POST",
            "/labels",
            content=stream,
            headers={"content-type": "application/x-ndjson"},
        )
        assert sent.status_code == 200
        wait_for(lambda: all(one and one.version == 300 for one in shards.status()))
        assert len(shards.search(search_in(version=300, rows=ROWS + 300)).rows) == 1
        with pytest.raises(ShardsUnavailable):
            shards.search(search_in(version=1))


def test_a_shard_with_other_row_numbers_does_not_answer(running: Running) -> None:
    with closing(open_log(running.state)) as label_log:
        shards = running.open(open_bundle(running.bundle), label_log, SETTINGS)
        assert len(shards.search(search_in(version=0)).rows) == 1
        with pytest.raises(ShardsUnavailable, match="numbers rows otherwise"):
            shards.search(search_in(version=0, rows=ROWS + 1))
        assert not any(shard.alive for shard in running.shards.values())


def test_a_shard_needs_the_log(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LogError):
        Shard(
            tiny_bundle_folder,
            tmp_path / "nowhere",
            share=KeyShare(index=0, count=2),
            settings=SETTINGS,
        )
    assert not (tmp_path / "nowhere").exists()


def test_what_is_no_front_is_sent_away(running: Running) -> None:
    host, port, _ = running.shards[0, 0].address
    for sent in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0\0\0\x01\x00"):
        with socket.create_connection((host, port), timeout=30) as connection:
            connection.sendall(sent)
            with suppress(ConnectionResetError):
                assert connection.recv(100) == b""


def search_in(version: int, rows: int = ROWS) -> KeySearch:
    return KeySearch(
        version=version,
        next_row=rows,
        scope=EVERYTHING,
        queries=np.ones((1, 16), np.float32) / 4,
        depth=3,
        kind=None,
        exact=False,
    )
