"""Rankings in compiled code and in numpy: by hand, then equal bits on memories of all kinds."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rpds import HashTrieMap

from service.core.bundle.label_details import LabelDetails
from service.core.memory.compaction import SegmentPlan
from service.core.memory.label_table import LabelTable
from service.core.memory.live_rows import LiveRows, LiveStore, NewRow
from service.core.memory.part import Part
from service.core.memory.row_ownership import RowOwnership
from service.core.memory.sealed_rows import seal
from service.core.memory.view import View
from service.core.prediction import ranking
from service.core.prediction.ranking import (
    LIBRARY,
    CompiledRanker,
    NumpyRanker,
    Ranker,
    Ranking,
    open_ranker,
)
from service.core.types import Floats, PredictOptions, RowKind, Rows

TAU = 0.07
LearnedRow = tuple[RowKind, list[int], list[float] | None]  # kind, votes, weights of the votes
IDS = [f"label-{number}" for number in range(60, 0, -1)]  # not in order of their columns

compiled_only = pytest.mark.skipif(
    not LIBRARY.exists(), reason="libvotes.so was not built: pip install --editable ."
)
rankers = pytest.mark.parametrize(
    "ranker", [pytest.param(CompiledRanker, marks=compiled_only), NumpyRanker]
)


def view_of(
    instances: list[list[int]],
    *,
    labels: int = len(IDS),
    parts: tuple[Part, ...] = (),
    deleted: list[int] | None = None,
    vote_weights: list[float] | None = None,
) -> View:
    """A view with these rows of Y, with nothing to search in."""
    counts = [0, *(len(votes) for votes in instances)]
    bundle: Any = SimpleNamespace(
        instances=len(instances),
        labels=labels,
        indptr=np.cumsum(counts),
        indices=np.array([column for votes in instances for column in votes], np.int32),
        vote_weights=None if vote_weights is None else np.array(vote_weights, np.float32),
    )
    ids: Any = IDS
    return View(
        version=0,
        bundle=bundle,
        base_alive=None,
        base_dead_rows=0,
        parts=parts,
        plans=(),
        labels=LabelTable(
            base_ids=ids,
            base_texts=ids,
            base_details=LabelDetails(None),
            columns=len(IDS),
            live=HashTrieMap(),
            deleted=np.array(deleted or [], np.int32),
        ),
        ownership=RowOwnership(),
    )


def live_rows(first: int, rows: list[LearnedRow]) -> LiveRows:
    store = LiveStore(capacity=max(1, len(rows)), dimension=1)
    vector = np.ones(1, np.float16)
    part = LiveRows(store=store, first=first, count=0)
    return part.append(
        [
            NewRow(
                kind=kind,
                text="",
                votes=np.array(votes, np.int32),
                vector=vector,
                weights=None if weights is None else np.array(weights, np.float32),
            )
            for kind, votes, weights in rows
        ]
    )


def ranked(
    ranker: Ranker, view: View, rows: Rows, similarities: Floats, options: PredictOptions
) -> Ranking:
    return ranker.rank(view, rows=rows, similarities=similarities, tau=TAU, options=options)


@rankers
def test_two_keys_by_hand(ranker: type[Ranker]) -> None:
    """Equal similarities share the weight; lambda = 0.2: the instance votes for 0 and 1."""
    view = view_of([[0, 1]], labels=2)
    rows, similarities = np.array([0, 2]), np.ones(2, np.float32)
    found = ranked(ranker(), view, rows, similarities, PredictOptions(memorization=0.2))
    assert found.weights == pytest.approx([0.1, 0.4])
    assert found.columns == [1, 0]
    assert found.scores == pytest.approx([0.5, 0.1])


@rankers
def test_weighted_votes_by_hand(ranker: type[Ranker]) -> None:
    """As above, but the instance's vote for 0 weighs 1.5 and that for 1 half; labels weigh 1."""
    view = view_of([[0, 1]], labels=2, vote_weights=[1.5, 0.5])
    rows, similarities = np.array([0, 2]), np.ones(2, np.float32)
    found = ranked(ranker(), view, rows, similarities, PredictOptions(memorization=0.2))
    assert found.weights == pytest.approx([0.1, 0.4])
    assert found.columns == [1, 0]
    assert found.scores == pytest.approx([0.45, 0.15])


@rankers
def test_rows_learned_since_the_bundle_vote_by_their_kind(ranker: type[Ranker]) -> None:
    learned = live_rows(3, [(RowKind.LABEL, [4], None), (RowKind.INSTANCE, [5, 0], None)])
    view = view_of([[0]], labels=2, parts=(learned,))
    rows, similarities = np.array([4, 3, 0, 1]), np.zeros(4, np.float32)
    found = ranked(ranker(), view, rows, similarities, PredictOptions(memorization=0.25))
    assert dict(zip(found.columns, found.scores, strict=True)) == pytest.approx(
        {0: 0.0625 + 0.0625 + 0.1875, 5: 0.0625, 4: 0.1875}
    )


@rankers
def test_weighted_votes_of_rows_learned_since_the_bundle_by_hand(ranker: type[Ranker]) -> None:
    """As above, with a click that weighs 3 for the label 5 and 1 for the label 0."""
    learned = live_rows(3, [(RowKind.LABEL, [4], None), (RowKind.INSTANCE, [5, 0], [3.0, 1.0])])
    view = view_of([[0]], labels=2, parts=(learned,))
    rows, similarities = np.array([4, 3, 0, 1]), np.zeros(4, np.float32)
    found = ranked(ranker(), view, rows, similarities, PredictOptions(memorization=0.25))
    assert dict(zip(found.columns, found.scores, strict=True)) == pytest.approx(
        {0: 0.0625 + 0.0625 + 0.1875, 5: 3 * 0.0625, 4: 0.1875}
    )


@rankers
def test_ties_are_in_order_of_id_however_many_there_are(ranker: type[Ranker]) -> None:
    view = view_of([list(range(len(IDS)))])
    found = ranked(ranker(), view, np.zeros(1, int), np.ones(1, np.float32), PredictOptions())
    assert [IDS[column] for column in found.columns] == sorted(IDS)[:10]


@rankers
def test_no_keys_have_no_labels(ranker: type[Ranker]) -> None:
    nothing = ranked(
        ranker(), view_of([[0]]), np.zeros(0, int), np.zeros(0, np.float32), PredictOptions()
    )
    assert (nothing.columns, nothing.weights.tolist()) == ([], [])


@rankers
def test_deleted_labels_get_no_score(ranker: type[Ranker]) -> None:
    view = view_of([[0, 1, 2]], deleted=[0, 2])
    found = ranked(ranker(), view, np.zeros(1, int), np.ones(1, np.float32), PredictOptions())
    assert found.columns == [1]


@rankers
@pytest.mark.parametrize("row", [3, 10**12])
def test_a_row_outside_the_memory_is_an_error(ranker: type[Ranker], row: int) -> None:
    view = view_of([[0]], labels=2)
    if ranker is NumpyRanker:
        assert view.is_instance(np.array([row])).tolist() == [False]  # it gets no vote
        return
    with pytest.raises(IndexError, match="outside the memory"):
        ranked(ranker(), view, np.array([row]), np.ones(1, np.float32), PredictOptions())


@compiled_only
@pytest.mark.parametrize("indptr", [[0, 2], [0, -1], [1, 0]])
def test_votes_outside_the_matrix_are_an_error_and_not_read(indptr: list[int]) -> None:
    view = view_of([[0]])
    view.bundle.indptr[:] = indptr
    with pytest.raises(IndexError, match="outside the memory"):
        ranked(CompiledRanker(), view, np.zeros(1, int), np.ones(1, np.float32), PredictOptions())


@st.composite
def views(draw: st.DrawFn) -> View:
    """Instances, labels, a sealed part or none, live rows or none, deleted labels, vote weights.

    Neither, one or both of the bundle's votes and those of learned rows have weights.
    """
    votes = st.lists(st.integers(0, len(IDS) - 1), max_size=6, unique=True)
    instances = draw(st.lists(votes, max_size=80))
    labels = draw(st.integers(1, len(IDS)))
    weighted, drawn = draw(st.booleans()), np.random.default_rng(draw(st.integers(0, 2**32)))
    learned = st.lists(
        st.tuples(
            st.sampled_from(RowKind), votes, st.booleans() if weighted else st.just(False)
        ).map(lambda row: (*row[:2], drawn.random(len(row[1])).tolist() if row[2] else None)),
        max_size=20,
    )
    first, parts = len(instances) + labels, []
    if rows := draw(learned):
        live = live_rows(first, rows)
        kept = sorted(draw(st.sets(st.integers(live.first, live.stop - 1), min_size=1)))
        plan = SegmentPlan(first=live.first, stop=live.stop, level=0, rows=np.array(kept, np.int64))
        parts.append(seal(plan, [live], None, dimension=1))
        first = live.stop
    parts += [live_rows(first, rows) for rows in [draw(learned)] if rows]
    deleted = draw(st.sets(st.integers(0, len(IDS) - 1), max_size=20))
    count = sum(map(len, instances))
    weights = st.lists(st.floats(0.125, 9.0, width=32), min_size=count, max_size=count)
    return view_of(
        instances,
        labels=labels,
        parts=tuple(parts),
        deleted=sorted(deleted),
        vote_weights=draw(st.none() | weights),
    )


@compiled_only
@given(
    data=st.data(),
    view=views(),
    memorization=st.sampled_from([0.0, 0.3, 0.4, 0.5, 1.0]),
    top_k=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_compiled_code_and_numpy_give_equal_bits(
    data: st.DataObject, view: View, memorization: float, top_k: int, seed: int
) -> None:
    """Few distinct similarities make ties; up to 200 keys make numpy add in several blocks."""
    stored = view.alive_rows()
    rng = np.random.default_rng(seed)
    rows = rng.permutation(stored)[: data.draw(st.integers(0, len(stored)))]
    steps = data.draw(st.sampled_from([1, 3, 1000]))
    similarities = -np.sort(rng.integers(-steps, steps + 1, len(rows)) / steps).astype(np.float32)
    options = PredictOptions(top_k=top_k, memorization=memorization)
    expected = ranked(NumpyRanker(), view, rows, similarities, options)
    found = ranked(CompiledRanker(), view, rows, similarities, options)
    assert found.columns == expected.columns
    assert np.array(found.scores).tobytes() == np.array(expected.scores).tobytes()
    assert found.weights.tobytes() == expected.weights.tobytes()


@compiled_only
def test_threads_share_a_ranker_also_while_another_bundle_takes_over() -> None:
    compiled, options = CompiledRanker(), PredictOptions()
    small, large = view_of([[0]]), view_of([[1, 2]] * 500)

    def rank(number: int) -> list[int]:
        view = (small, large)[number % 2]
        rows = np.arange(view.bundle.instances)
        return ranked(compiled, view, rows, np.ones(len(rows), np.float32), options).columns

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(rank, range(400))) == [[0], [2, 1]] * 200


def test_a_library_of_another_version_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ranking, "LIBRARY", Path(orjson.orjson.__file__))
    with caplog.at_level(logging.WARNING, "keymatch"):
        assert isinstance(open_ranker(), NumpyRanker)
    assert "install the package again" in caplog.text


@compiled_only
def test_weights_of_one_give_the_bits_of_no_weights() -> None:
    rng = np.random.default_rng(0)
    votes = [rng.permutation(len(IDS))[:5].tolist() for _ in range(200)]
    similarities = -np.sort(-rng.random(100)).astype(np.float32)
    rows, options = rng.permutation(200)[:100], PredictOptions(top_k=20)
    plain, ones = view_of(votes), view_of(votes, vote_weights=[1.0] * 1000)
    expected = ranked(CompiledRanker(), plain, rows, similarities, options)
    found = ranked(CompiledRanker(), ones, rows, similarities, options)
    assert (found.columns, found.scores) == (expected.columns, expected.scores)


def test_without_the_library_numpy_ranks_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(ranking, "LIBRARY", tmp_path / "missing.so")
    with caplog.at_level(logging.WARNING, "keymatch"):
        assert isinstance(open_ranker(), NumpyRanker)
    assert "install the package again" in caplog.text
