"""After kill -9 during writes, the log holds every acknowledged write once, and nothing else.

Servers are killed at 20 random moments, or KEYMATCH_CRASHES. A scenario has five kills, so some
servers die before they have sealed the previous one's rows. Then its answers are compared with
those of a process that has only the bundle and the log. Every fourth scenario uses PostgreSQL.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.scenario import CRASHES, FIGURES, SEED, Scenario, kill_after
from tests.support.serving import wait_for

pytestmark = pytest.mark.slow

CRASHES_PER_SCENARIO = 5
MOST_SECONDS = 1.5  # from the start of the traffic to the kill


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
    """In a bundle of UniDEC, posted labels get keys from the combiner and the classifiers."""
    seed = f"{SEED}/unidec"
    scenario = new_scenario(seed=seed, bundle=unidec_bundle, items=None)
    crash_and_compare(scenario, seed=seed, crashes=2)


def crash_and_compare(scenario: Scenario, *, seed: str, crashes: int) -> None:
    """Kill `crashes` servers while clients write; then compare with a new server's answers."""
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
        # The server must also seal rows from new writes, not only rows replayed from the log.
        with scenario.traffic(server):
            goal = scenario.writes + 50
            wait_for(lambda: scenario.writes > goal)
        scenario.check(server)
        scenario.prove_equal(server)
    scenario.check_log()
