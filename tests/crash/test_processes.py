"""Several processes on one log: what one has acknowledged every other answers, in one order."""

from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter

import pytest

from tests.crash.figures import FIGURES
from tests.crash.life import Life
from tests.support.serving import ServerProcess, wait_for

TIMED_WRITES = 200


@pytest.mark.parametrize(("log", "processes"), [("SQLite", 2), ("PostgreSQL", 3)])
def test_processes_share_a_log(
    begin: Callable[..., Life], request: pytest.FixtureRequest, log: str, processes: int
) -> None:
    state = request.getfixturevalue("postgres_url") if log == "PostgreSQL" else ""
    life = begin(seed=f"{processes} processes", state=state)
    with ExitStack() as running:
        servers = [running.enter_context(life.server()) for _ in range(processes)]
        with life.traffic(*servers):
            wait_for(lambda: life.writes > 100)
            servers[0].kill()
            goal = life.writes + 100
            wait_for(lambda: life.writes > goal)
        FIGURES.kills += 1
        servers[0] = running.enter_context(life.server())
        life.check(servers[1])
        for server in servers:
            life.check_shown(server)
        life.prove_equal(*servers)
        FIGURES.visible[log] = visibility(servers[0], servers[-1])


def visibility(writer: ServerProcess, reader: ServerProcess) -> list[float]:
    """Seconds from each acknowledgement to the answer of another process that shows the write."""
    seconds = []
    for number in range(TIMED_WRITES):
        text = f"zephyr {number}"
        posted = writer.client.post("/labels", json={"labels": [{"text": text}]})
        start = perf_counter()
        asked = {"queries": [text], "min_version": posted.json()["version"], "deadline_ms": 60_000}
        answer = reader.client.post("/predict", json=asked)
        seconds.append(perf_counter() - start)
        assert answer.json()["version"] >= posted.json()["version"]
        assert reader.client.get(f"/labels/{text}").json()["text"] == text
    return seconds
