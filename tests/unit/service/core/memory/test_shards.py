"""A memory divided into shards answers as one that is not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import Change, DeleteRule
from service.core.index.key_parts import KeyShare
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KEPT_VERSIONS, KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.tenant import Tenant
from service.core.types import NewLabel, Prediction, PredictOptions
from tests.support.changes import ENCODER, click, delete, put, put_rule, seal, unlearn
from tests.support.label_filters import FILTERS
from tests.support.rules import RULES
from tests.support.shards import MemoryShards
from tests.support.tiny.bundles import Catalogue, make_bundle

SHARDS = 3
LIMITS = MemoryLimits(seal_rows=64, fan_out=2)
WORDS = "boot lamp tent stove bottle shoe trail light gas water camp run XK-44 two red".split()
METADATA = ({}, {"bid": "0.10"}, {"price": 1.0, "sizes": ("m", "s")}, {"price": True, "bid": "x"})
BATCH = 8  # with many more queries, exact search multiplies matrices and rounds otherwise


def bundle_of(folder: Path, *, parts: int | None = None) -> Bundle:
    drawn = np.random.default_rng(7)
    labels = {f"label-{place}": _text(drawn) for place in range(60)}
    instances = {
        f"{_text(drawn)} {place % 40}": tuple(drawn.choice(list(labels), 3, replace=False))
        for place in range(120)
    }
    catalogue = Catalogue(labels=labels, instances=instances)
    return open_bundle(
        make_bundle(folder / "bundle", catalogue, encoder=ENCODER, depth=20, parts=parts)
    )


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
            _answered(memory, queries, options, now) for memory in (self.whole, self.front)
        )
        assert whole == front


def _answered(
    memory: KnowledgeMemory, queries: Sequence[str], options: PredictOptions, now: float
) -> tuple[Prediction, ...]:
    view = memory.of_tenant(memory.active(memory.view, now), options.tenant)
    view = memory.only(view, options.filter)
    predictor = Predictor(ENCODER, tau=0.1, only=memory.only)
    return predictor.predict(view, queries, options).predictions


def _text(drawn: np.random.Generator) -> str:
    return " ".join(drawn.choice(WORDS, drawn.integers(1, 4)))


def _changes(seed: int) -> Iterator[Change]:
    """Yield posts, deletions, clicks, negative pairs, unlearned pairs and rules without an end."""
    drawn, sequence = np.random.default_rng(seed), 0
    while True:
        sequence += 1
        kind = drawn.random()
        label_id = f"label-{drawn.integers(60)}" if drawn.random() < 0.4 else _new_id(drawn)
        if kind < 0.4:
            yield put(
                sequence,
                NewLabel(
                    id=label_id,
                    text=_text(drawn),
                    queries=tuple({_text(drawn) for _ in range(drawn.integers(3))}),
                    aliases=(_text(drawn),) if drawn.random() < 0.2 else (),
                    metadata=METADATA[drawn.integers(len(METADATA))],
                    boost=float(drawn.choice([1.0, 1.0, 2.0])),
                    expires_at=15.0 if drawn.random() < 0.05 else None,
                ),
            )
        elif kind < 0.75:
            labels = {f"label-{drawn.integers(60)}", _new_id(drawn)}
            weight = float(drawn.choice([1.0, 5.0, -1.0]))
            yield click(sequence, _text(drawn), *sorted(labels), weight=weight)
        elif kind < 0.85:
            yield delete(sequence, label_id)
        elif kind < 0.95:
            yield unlearn(sequence, _text(drawn), label_id, f"label-{drawn.integers(60)}")
        elif kind < 0.98:
            yield put_rule(sequence, RULES[drawn.integers(len(RULES))])
        else:
            yield DeleteRule(sequence=sequence, id=RULES[drawn.integers(len(RULES))].id)


def _new_id(drawn: np.random.Generator) -> str:
    return f"new-{drawn.integers(80)}"


def _options(drawn: np.random.Generator) -> PredictOptions:
    return PredictOptions(
        top_k=int(drawn.integers(1, 12)),
        depth=int(drawn.choice([4, 20, 100])),
        memorization=float(drawn.choice([0.0, 0.4, 1.0])),
        exact=True,
        explain=bool(drawn.random() < 0.3),
        spelling=bool(drawn.random() < 0.2),
        words=0.8 if drawn.random() < 0.5 else None,
        match=("exact", "phrase") if drawn.random() < 0.2 else None,
        diversity=0.3 if drawn.random() < 0.2 else 0.0,
        filter=FILTERS[drawn.integers(len(FILTERS))] if drawn.random() < 0.4 else None,
        tenant=Tenant("bid", "0.10") if drawn.random() < 0.2 else None,
    )


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
    for change in islice(_changes(seed=5), operations):
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
            queries = [_text(drawn) for _ in range(drawn.integers(1, BATCH))]
            both.require_equal(queries, _options(drawn), now=float(drawn.choice([1.0, 8.0, 30.0])))
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
    changes, whole = list(islice(_changes(seed=6), 600)), KnowledgeMemory(bundle, LIMITS)
    rows = {change.sequence: whole.apply([change]).next_row for change in changes}
    shard = KnowledgeMemory(bundle, LIMITS, share=KeyShare(index=1, count=SHARDS))
    for start in range(0, len(changes), together):
        shard.apply(changes[start : start + together])
    kept = {version for version in rows if shard.at(version) is not None}
    assert kept == set(range(len(changes) - KEPT_VERSIONS + 1, len(changes) + 1))
    for version in kept:
        view = shard.at(version)
        assert view is not None and (view.version, view.next_row) == (version, rows[version])
