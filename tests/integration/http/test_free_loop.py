"""Short bodies that hold very many values do not delay probes."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http.server import post, read_answer
from tests.support.serving import ServerProcess, server_process

AT_ONCE = 16
LIVE_SECONDS = 0.5  # looser than documented, because other tests may use the CPU
BODIES = {
    "unknown fields": ("/predict", {f"u{number}": 0 for number in range(300_000)}),
    "numbers": ("/labels", {"labels": [0] * 2_000_000}),
    "names": ("/labels", {"labels": [{"text": "a", f"x{n}": 0} for n in range(160_000)]}),
    "unknown labels": (
        "/instances",
        {"instances": [{"query": "a", "labels": [f"no {n}" for n in range(100)]}] * 1_000},
    ),
}


@pytest.fixture(scope="module")
def server(
    tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    with server_process(tiny_bundle_folder, folder / "state", folder / "log") as running:
        yield running


@pytest.mark.parametrize("kind", BODIES)
def test_probes_are_answered_beside_many_bodies_of_many_values(
    server: ServerProcess, kind: str
) -> None:
    path, document = BODIES[kind]
    request, statuses = post(path, document), []
    assert len(request) < 4_194_304

    def send() -> None:
        with server.connect() as connection:
            connection.sendall(request)
            statuses.append(read_answer(connection)[0])

    senders = [threading.Thread(target=send) for _ in range(AT_ONCE)]
    for sender in senders:
        sender.start()
    slowest = 0.0
    while any(sender.is_alive() for sender in senders):
        start = time.monotonic()
        assert server.client.get("/health/live").status_code == 200
        slowest = max(slowest, time.monotonic() - start)
        time.sleep(0.005)
    assert statuses == [422] * AT_ONCE
    assert slowest < LIVE_SECONDS
