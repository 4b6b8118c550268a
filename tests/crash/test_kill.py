"""kill -9 while clients write and read: what was acknowledged is there, once, and nothing else.

Twenty random moments; KEYMATCH_CRASHES=200 for more. Each life has five of them, so that a restart
is killed again before it has sealed what the last one left; then its answers are held against those
of a process that has only bundle and log. Every fourth life has its log in PostgreSQL.
"""

import random
from collections.abc import Callable

import pytest

from tests.crash.figures import FIGURES
from tests.crash.life import CRASHES, SEED, Life, kill_after
from tests.support.serving import wait_for

CRASHES_PER_LIFE = 5
MOST_SECONDS = 1.5  # from the beginning of the traffic to the kill


LIVES = -(-CRASHES // CRASHES_PER_LIFE)


@pytest.mark.parametrize(
    ("log", "number"),
    [("PostgreSQL" if number % 4 == 3 else "SQLite", number) for number in range(LIVES)],
)
def test_any_moment(
    begin: Callable[..., Life], request: pytest.FixtureRequest, log: str, number: int
) -> None:
    state = request.getfixturevalue("postgres_url") if log == "PostgreSQL" else ""
    FIGURES.seed = f"KEYMATCH_CRASH_SEED={SEED}"
    seed = f"{SEED}/{number}"
    chance, life = random.Random(seed), begin(seed=seed, state=state)
    for _ in range(min(CRASHES_PER_LIFE, CRASHES - number * CRASHES_PER_LIFE)):
        with life.server() as server:
            life.check(server)
            with life.traffic(server):
                kill_after(server, chance.uniform(0, MOST_SECONDS))
            FIGURES.kills += 1
    with life.server() as server:
        life.check(server)
        with life.traffic(server):  # so that it has sealed what it learned, not only what it read
            goal = life.writes + 50
            wait_for(lambda: life.writes > goal)
        life.check(server)
        life.prove_equal(server)
    life.check_log()
