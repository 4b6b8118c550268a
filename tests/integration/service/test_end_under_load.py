"""A service under the costliest queries stops in time, and answers or refuses each of them."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import pytest

from service.server.worker import MARGIN_SECONDS
from tests.support.http.server import post, read_answer
from tests.support.serving import server_process, wait_for
from tests.support.tiny.bundles import Catalogue, make_bundle

# One thread needs many seconds for this on any machine; `held_bytes` admits all of it.
REQUESTS = 60
COSTLY = {"top_k": 1_000, "depth": 2_000, "explain": True, "memorization": 1.0}
SETTINGS = """
[server]
shutdown_seconds = 1
[limits]
held_bytes = 2_000_000_000
[engine]
threads = 1
queue_queries = 1_000_000
queue_target_ms = 60_000
queue_interval_ms = 60_000
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with so many keys that the costliest query takes long."""
    words = [f"{a}{b}{c}" for a in "abcdefghijklm" for b in "aeiou" for c in "nopqrstuvwxyzbcdfgh"]
    labels = {word: f"{word} goods" for word in words}
    instances = {f"{word} wanted": (word, words[0]) for word in words}
    return make_bundle(tmp_path / "bundle", Catalogue(labels=labels, instances=instances))


def test_costly_requests_are_answered_or_refused_when_the_service_ends(
    bundle: Path, tmp_path: Path
) -> None:
    config = tmp_path / "keymatch.toml"
    config.write_text(SETTINGS)
    places = (bundle, tmp_path / "state", tmp_path / "log")
    with server_process(*places, "--config", str(config)) as server, ExitStack() as sockets:
        asked = [sockets.enter_context(server.connect()) for _ in range(REQUESTS)]
        for number, connection in enumerate(asked):
            queries = [f"{word} {number} goods" for word in "abcdefghijklmnop"]
            body = {**COSTLY, "queries": queries, "deadline_ms": 60_000}
            connection.sendall(post("/predict", body))
        wait_for(lambda: "keymatch_queue_depth 0.0" not in server.client.get("/metrics").text)
        sleep(0.5)
        start = monotonic()
        assert server.stop() == 0
        seconds = monotonic() - start
        answers = [read_answer(connection) for connection in asked]
    statuses = Counter(status for status, _, _ in answers)
    assert set(statuses) <= {200, 503}, statuses
    assert statuses[503] > 0, "the work was done before the time was over: make it more"
    assert all(body["type"].startswith("urn:") for status, _, body in answers if status == 503)
    assert seconds < 1 + MARGIN_SECONDS + 2
    assert not server.logged("defect")
