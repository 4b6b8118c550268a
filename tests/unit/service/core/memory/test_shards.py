"""A memory divided into shards answers as one that is not."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import Change
from service.core.index.key_parts import KeyShare
from service.core.memory.knowledge_memory import KEPT_VERSIONS, KnowledgeMemory
from service.core.types import PredictOptions
from tests.support.changes import delete, seal
from tests.support.histories.mixed import (
    LIMITS,
    MOMENTS,
    answered,
    bundle_of,
    exact_options,
    mixed_changes,
    some_queries,
)
from tests.support.shards import MemoryShards

SHARDS = 3


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_of(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_of(tmp_path_factory.mktemp("parts"), parts=SHARDS)


@dataclass
class Both:
    """One memory that is whole, and one that is divided, after the same changes."""

    bundle: Bundle
    divided: Bundle  # the same keys, perhaps in parts
    folder: Path

    def __post_init__(self) -> None:
        self.restart(())

    def restart(self, changes: Sequence[Change]) -> None:
        """Open the bundle again, and replay the log."""
        self.whole = KnowledgeMemory(self.bundle, LIMITS)
        self.shards = MemoryShards(self.divided, LIMITS, count=SHARDS)
        keyless = open_bundle(self.divided.folder, parts=())
        self.front = KnowledgeMemory(keyless, LIMITS, shards=self.shards)
        if changes:
            self.apply(changes)

    def apply(self, changes: Sequence[Change]) -> None:
        self.shards.apply(changes)
        for memory in (self.whole, self.front):
            memory.apply(changes)

    def seal(self) -> None:
        seal(self.whole, self.folder)
        self.shards.seal(self.folder)
        for plan in list(self.front.view.unsealed_plans()):
            assert self.front.attach(self.front.seal(plan, None))

    def require_equal(self, queries: Sequence[str], options: PredictOptions, now: float) -> None:
        whole, front = (
            answered(memory, queries, options, now) for memory in (self.whole, self.front)
        )
        assert whole == front


@pytest.mark.parametrize(
    ("divided", "operations"),
    [
        ("bundle", 1_000),
        ("in_parts", 800),
        pytest.param("in_parts", 10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)]),
    ],
)
def test_exact_answers_are_those_of_one_memory(
    bundle: Bundle, divided: str, operations: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Bit for bit, over mixed changes, seals and restarts."""
    both = Both(bundle, request.getfixturevalue(divided), tmp_path)
    drawn = np.random.default_rng(1)
    log: list[Change] = []
    pending: list[Change] = []
    compared = sealed = 0
    for change in islice(mixed_changes(seed=5), operations):
        log.append(change)
        pending.append(change)
        if drawn.random() < 0.9:
            continue
        both.apply(pending)
        pending = []
        if drawn.random() < 0.05:
            both.seal()
            sealed = max(sealed, both.whole.view.sealed_rows)
        if drawn.random() < 0.3:
            both.require_equal(
                some_queries(drawn), exact_options(drawn), now=int(drawn.choice(MOMENTS))
            )
            compared += 1
        if drawn.random() < 20 / operations:
            both.restart(log)
    assert compared > operations / 50
    assert sealed > 300


def test_a_part_is_searched_through_its_own_graph(in_parts: Bundle) -> None:
    """Without another one, until many of its rows have died."""
    shards = MemoryShards(in_parts, LIMITS, count=SHARDS)
    queries = in_parts.keys[:5].astype(np.float32)
    for index, memory in enumerate(shards.memories):
        view = memory.view
        assert view.unbuilt_base_plan() is None
        found = view.retrieve(queries, depth=20)[1]
        assert np.isin(found[found >= 0], in_parts.parts[index].rows).all()
        assert np.array_equal(found, view.retrieve(queries, depth=20, exact=True)[1])
    deletions = [delete(place, f"label-{place}") for place in range(1, 51)]
    shards.apply(deletions)
    for memory in shards.memories:
        plan = memory.view.unbuilt_base_plan()
        assert plan is not None
        assert {*memory.view.base.alive_rows()} <= {*plan.rows}  # some died after it was made


@pytest.mark.parametrize("together", [1, 3, 200, KEPT_VERSIONS, 300, 600])
def test_a_shard_keeps_a_view_of_each_recent_version(bundle: Bundle, together: int) -> None:
    """However many changes it reads at once."""
    changes, whole = list(islice(mixed_changes(seed=6), 600)), KnowledgeMemory(bundle, LIMITS)
    rows = {change.sequence: whole.apply([change]).next_row for change in changes}
    shard = KnowledgeMemory(bundle, LIMITS, share=KeyShare(index=1, count=SHARDS))
    for start in range(0, len(changes), together):
        shard.apply(changes[start : start + together])
    kept = {version for version in rows if shard.at(version) is not None}
    assert kept == set(range(len(changes) - KEPT_VERSIONS + 1, len(changes) + 1))
    for version in kept:
        view = shard.at(version)
        assert view is not None and (view.version, view.next_row) == (version, rows[version])
