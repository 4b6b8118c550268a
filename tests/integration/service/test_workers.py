"""Several workers, as real processes, are paused, killed, drained and scraped."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.commands import run
from tests.support.http.server import TENT, post
from tests.support.serving import ServerProcess, wait_for
from tests.support.tiny.bundles import make_bundle, sign_again

TWO = ("--workers", "2")
FRESH = {"connection": "close"}  # one connection always reaches the same worker
Start = Callable[..., ServerProcess]


def ask(server: ServerProcess, query: str = "tent") -> None:
    answer = server.client.post("/predict", json={"queries": [query]}, headers=FRESH)
    assert answer.status_code == 200


def put(server: ServerProcess, text: str) -> int:
    """Post a label whose id is its text; returns the version that holds it."""
    labels = {"labels": [{"id": text, "text": text}]}
    answer = server.client.post("/labels", json=labels, headers=FRESH)
    return int(answer.json()["version"])


def best(server: ServerProcess, query: str, *, min_version: int) -> str:
    asked = {"queries": [query], "min_version": min_version, "deadline_ms": 60_000}
    answer = server.client.post("/predict", json=asked, headers=FRESH)
    return str(answer.json()["results"][0]["keywords"][0]["id"])


def scrape(server: ServerProcess) -> dict[tuple[str, ...], float]:
    """Map (name, label values in order of label names) of every sample to its value."""
    text = server.client.get("/metrics", headers=FRESH).text
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def predicted(server: ServerProcess) -> float:
    return scrape(server).get(("keymatch_requests_total", "/predict", "200"), 0)


def version_waiters(server: ServerProcess) -> float:
    return scrape(server)["keymatch_version_waiters",]


def two_workers(server: ServerProcess) -> list[int]:
    """The process ids of the two newest workers, once both listen."""
    wait_for(lambda: len(server.workers) >= 2)
    return server.workers[-2:]


@contextmanager
def paused(worker: int) -> Iterator[None]:
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


def ended(process: int) -> bool:
    """Return whether a process has ended, even if its parent has not read its status yet."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def wait_for_a_write(server: ServerProcess) -> socket.socket:
    """Send a query that waits for the first write; returns the connection with its answer."""
    connection = server.connect()
    connection.sendall(post("/predict", {**TENT, "min_version": 1}))
    return connection


def test_numbers_are_those_of_all_workers(start: Start) -> None:
    server = start(*TWO)
    one, other = two_workers(server)
    for worker in (one, other):
        with paused(worker):  # so that the other worker answers
            for _ in range(10):
                ask(server)

    def scraped(*, beside: int) -> dict[tuple[str, ...], float]:
        """Scrape the other worker."""
        with paused(beside):
            return scrape(server)

    def answered() -> float:
        return scraped(beside=one)["keymatch_requests_total", "/predict", "200"]

    wait_for(lambda: answered() == 20)  # though nobody has scraped the first worker
    for worker in (one, other):
        found = scraped(beside=worker)
        assert found["keymatch_requests_total", "/predict", "200"] == 20
        assert found["keymatch_request_seconds_count", "/predict"] == 20
        assert found["keymatch_stage_seconds_count", "retrieve"] == 20
        assert found["keymatch_batch_size_sum", "predict"] == 20
        # The memory is counted once for all workers.
        rows = {kind: found["keymatch_memory_rows", kind] for kind in ("base", "live", "tombstone")}
        assert rows == {"base": 14, "live": 0, "tombstone": 0}
        assert found["keymatch_memory_version",] == 0
        assert found["keymatch_log_lag_events",] == 0
        assert [value for key, value in found.items() if key[0] == "keymatch_build_info"] == [1]


# Ends -----------------------------------------------------------------------------------------


def test_a_killed_worker_is_replaced_and_its_counts_stay(start: Start, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    server = start(*TWO, env={"TMPDIR": str(temporary)})
    victim, survivor = two_workers(server)
    with paused(survivor):
        for _ in range(5):
            ask(server)
        hanging = wait_for_a_write(server)
        wait_for(lambda: version_waiters(server) == 1)
        assert predicted(server) == 5
    os.kill(victim, signal.SIGKILL)
    ask(server)
    wait_for(lambda: predicted(server) == 6)
    hanging.close()
    wait_for(lambda: len(server.workers) == 3)
    wait_for(lambda: version_waiters(server) == 0)  # the dead worker's waiters no longer count
    newcomer = server.workers[-1]
    assert not ended(survivor)
    with paused(survivor):
        ask(server)
        version = put(server, "ice axe")
    with paused(newcomer):
        assert best(server, "ice axe", min_version=version) == "ice axe"
    wait_for(lambda: predicted(server) == 8)
    wait_for(lambda: scrape(server)["keymatch_memory_version",] == version)
    assert server.stop() == 0
    assert all(ended(worker) for worker in (victim, survivor, newcomer))
    assert not [*temporary.glob("keymatch-*")]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port)).close()


def test_workers_end_after_a_killed_parent(start: Start) -> None:
    server = start(*TWO)
    workers = two_workers(server)
    server.kill()
    wait_for(lambda: all(ended(worker) for worker in workers))
    assert len(server.logged("the parent process is gone")) == 2
    assert len(server.logged("Application shutdown complete.")) == 2


# Starts that fail -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_parent_gives_up_where_workers_never_become_ready(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    (bundle / "encoder.onnx").write_bytes(b"whole by its checksum, and no graph")
    sign_again(bundle)
    places = ("--bundle", bundle, "--state", tmp_path / "state", "--port", "0")
    gave_up = run("service", "serve", *places, *TWO)
    assert gave_up.returncode == 1
    assert gave_up.stderr.count('"workers keep ending before they are ready"') == 1
    assert gave_up.stderr.count('"the worker cannot start"') >= 5
    assert "Started server process" not in gave_up.stderr
