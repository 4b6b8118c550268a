"""Shards that Ray places on several nodes of a cluster, which die with their shards."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtests.resources import shard_processes
from service.core.bundle.bundle import open_bundle
from service.core.errors import ShardsUnavailable
from service.core.label_log import open_log
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.types import Prediction, PredictOptions
from service.settings import EngineSettings
from service.shards.cluster import ClusterConfig, ClusterProcess
from service.shards.places import PlacesFolder
from tests.support.histories.mixed import (
    LIMITS,
    MOMENTS,
    answered,
    bundle_of,
    exact_options,
    mixed_changes,
    some_queries,
)
from tests.support.waiting import wait_for

SHARDS = NODES = 3
OPERATIONS = 10_000
KILLS = 8  # of one shard each
# The history is drawn, so most of its clicks are for labels that nobody posted.
SETTINGS = EngineSettings(seal_rows=LIMITS.seal_rows, shard_timeout_ms=30_000, other_data=True)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster with a head that offers no cores, and nodes with one core each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(NODES):
            cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_exact_answers_are_those_of_one_memory(cluster: Any, tmp_path: Path) -> None:
    """Bit for bit, over mixed changes, seals, and deaths of shards and of a node."""
    bundle, drawn = bundle_of(tmp_path, parts=SHARDS), np.random.default_rng(1)
    keyless = open_bundle(bundle.folder, parts=())
    places, state = tmp_path / "places", tmp_path / "state"
    places.mkdir()
    changes = list(islice(mixed_changes(seed=5), OPERATIONS))
    kills = {int(at) for at in np.linspace(0, OPERATIONS, KILLS + 1, endpoint=False)[1:]}
    with closing(open_log(state)) as log:
        config = ClusterConfig(shards=SHARDS, address=cluster.address)
        placing = ClusterProcess(config, places, state=state, settings=SETTINGS)
        try:
            shards = PlacesFolder(places).open(keyless, log, SETTINGS)

            def restarted(stop: int) -> tuple[KnowledgeMemory, KnowledgeMemory]:
                """Open a whole memory and a front, with the log so far."""
                memories = (
                    KnowledgeMemory(bundle, LIMITS),
                    KnowledgeMemory(keyless, LIMITS, shards=shards),
                )
                for memory in memories:
                    memory.apply(changes[:stop])
                return memories

            whole, front = restarted(0)
            start = compared = 0
            while start < OPERATIONS:
                stop = min(OPERATIONS, start + int(drawn.geometric(0.1)))
                pending = changes[start:stop]
                with log.exclusive() as appending:
                    appending.append(pending, encoder=bundle.manifest.encoder.fingerprint)
                whole.apply(pending)
                front.apply(pending)
                if kills & set(range(start, stop)):
                    alive = list(shard_processes(os.getpid()))
                    os.kill(alive[drawn.integers(len(alive))], signal.SIGKILL)
                if start <= OPERATIONS // 2 < stop:
                    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
                if drawn.random() < 20 / OPERATIONS:
                    whole, front = restarted(stop)
                if drawn.random() < 0.3:
                    asked = some_queries(drawn), exact_options(drawn), int(drawn.choice(MOMENTS))
                    found = wait_for(partial(answered_by_shards, front, *asked))
                    assert found == answered(whole, *asked)
                    compared += 1
                start = stop
            assert compared > OPERATIONS / 50
            held = wait_for(lambda: all(shards.status()) and shards.status())
            assert {shard.version for shard in held} == {OPERATIONS}
        finally:
            placing.close()


def answered_by_shards(
    front: KnowledgeMemory, queries: list[str], options: PredictOptions, now: float
) -> tuple[Prediction, ...] | None:
    """Return the answers, or None while a shard is being started again."""
    with suppress(ShardsUnavailable):
        return answered(front, queries, options, now)
    return None
