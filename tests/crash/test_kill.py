"""kill -9 while clients write and read: what was acknowledged is there, once, and nothing else.

Twenty random moments; KEYMATCH_CRASHES=200 for more. Each scenario has five of them, so that some
servers are killed before they have sealed what the previous one left. Then its answers are compared
with those of a process that has only bundle and log. Every fourth scenario uses PostgreSQL.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.figures import FIGURES
from tests.crash.scenario import CRASHES, SEED, Scenario, kill_after
from tests.support.serving import wait_for

pytestmark = pytest.mark.slow

CRASHES_PER_SCENARIO = 5
MOST_SECONDS = 1.5  # from the beginning of the traffic to the kill


SCENARIOS = -(-CRASHES // CRASHES_PER_SCENARIO)


@pytest.mark.parametrize(
    ("log", "number"),
    [("PostgreSQL" if number % 4 == 3 else "SQLite", number) for number in range(SCENARIOS)],
)
def test_any_moment(
    new_scenario: Callable[..., Scenario], request: pytest.FixtureRequest, log: str, number: int
) -> None:
    state = request.getfixturevalue("postgres_url") if log == "PostgreSQL" else ""
    crashes = min(CRASHES_PER_SCENARIO, CRASHES - number * CRASHES_PER_SCENARIO)
    seed = f"{SEED}/{number}"
    crash_and_compare(new_scenario(seed=seed, state=state), seed=seed, crashes=crashes)


def test_any_moment_over_two_heads(
    new_scenario: Callable[..., Scenario], unidec_bundle: Path
) -> None:
    """UniDEC's bundle: posted labels get keys from its combiner and classifiers."""
    seed = f"{SEED}/unidec"
    scenario = new_scenario(seed=seed, bundle=unidec_bundle, items=None)
    crash_and_compare(scenario, seed=seed, crashes=2)


def crash_and_compare(scenario: Scenario, *, seed: str, crashes: int) -> None:
    """Kill so many servers amid traffic; then the answers must be those of bundle and log alone."""
    FIGURES.seed = f"KEYMATCH_CRASH_SEED={SEED}"
    chance = random.Random(seed)
    for _ in range(crashes):
        with scenario.server() as server:
            scenario.check(server)
            with scenario.traffic(server):
                kill_after(server, chance.uniform(0, MOST_SECONDS))
            FIGURES.kills += 1
    with scenario.server() as server:
        scenario.check(server)
        # It must seal rows that it learned itself, not only rows of the log.
        with scenario.traffic(server):
            goal = scenario.writes + 50
            wait_for(lambda: scenario.writes > goal)
        scenario.check(server)
        scenario.prove_equal(server)
    scenario.check_log()
