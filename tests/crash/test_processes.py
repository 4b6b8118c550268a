"""Processes that share a log show each other's acknowledged writes, in the same order."""

from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter

import pytest

from tests.crash.scenario import FIGURES, Scenario
from tests.support.serving import ServerProcess, wait_for

pytestmark = pytest.mark.slow

TIMED_WRITES = 200


@pytest.mark.parametrize(("log", "processes"), [("SQLite", 2), ("PostgreSQL", 3)])
def test_processes_share_a_log(
    new_scenario: Callable[..., Scenario], request: pytest.FixtureRequest, log: str, processes: int
) -> None:
    state = request.getfixturevalue("postgres_url") if log == "PostgreSQL" else ""
    scenario = new_scenario(seed=f"{processes} processes", state=state)
    with ExitStack() as running:
        servers = [running.enter_context(scenario.server()) for _ in range(processes)]
        with scenario.traffic(*servers):
            wait_for(lambda: scenario.writes > 100)
            servers[0].kill()
            goal = scenario.writes + 100
            wait_for(lambda: scenario.writes > goal)
        FIGURES.kills += 1
        servers[0] = running.enter_context(scenario.server())
        scenario.check(servers[1])
        for server in servers:
            scenario.check_shown(server)
        scenario.prove_equal(*servers)
        FIGURES.visible[log] = visibility(servers[0], servers[-1])


def visibility(writer: ServerProcess, reader: ServerProcess) -> list[float]:
    """Measure the seconds from each write's answer until another process shows the write."""
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
