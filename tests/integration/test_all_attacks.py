"""During short runs of all the load tests' attacks, latencies and memory stay within bounds."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.attacks.attackers import ATTACKS
from loadtests.attacks.rounds import measure_round
from loadtests.queries import distinct, read_queries
from loadtests.resources import metrics_of
from loadtests.traffic import Load
from service.child_server import Server, running_server
from service.core.bundle import manifest

pytestmark = pytest.mark.slow

LOAD = Load(rate=20.0, label_rate=0, seconds=2.0, seed=0)
# Loose, because other tests may use the CPU: a probe must not wait for seconds.
PROBE_SECONDS = 2.0
REFUSALS = {"429", "503"}  # statuses that the normal client may get
UNAVAILABLE = {"503", "504", "507"}  # statuses that any client may get


@pytest.fixture(scope="module")
def attacked(
    tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One service that is attacked in all ways, one after another."""
    snapshots = tmp_path_factory.mktemp("snapshots")
    options = ["--no-access-log", "--bundles", str(snapshots)]
    with running_server(tiny_bundle_folder, options=options) as server:
        yield server


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_takes_the_service_from_nobody(
    attacked: Server, tiny_bundle_folder: Path, attack: str
) -> None:
    queries = distinct(read_queries(tiny_bundle_folder), seed=0)
    facts = manifest.read(tiny_bundle_folder)
    beside = measure_round(attacked, facts, queries, LOAD, attack=attack)
    assert beside.internal_errors == beside.defects == 0, attacked.log.read_text()[-4_000:]
    assert set(beside.outcome.failures) <= REFUSALS
    assert beside.outcome.latencies
    assert not beside.health.failures
    assert max(beside.health.seconds) < PROBE_SECONDS
    assert 0 < beside.most_resident <= beside.budget
    assert beside.first_status == 200
    assert set(re.findall(r'status="(5\d\d)"', metrics_of(attacked.port))) <= UNAVAILABLE
