"""Rankings equal hand-computed ones and, bit for bit, those of the equations in plain Python."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rpds import HashTrieMap

from service.core.bundle.label_details import LabelDetails
from service.core.errors import NotCompiled
from service.core.files.arrays import constant
from service.core.index.compaction import SegmentPlan
from service.core.memory.label_table import LabelTable
from service.core.memory.part import BaseRows, LearnedRows, LiveRows, NewRow, RowPart, seal
from service.core.memory.row_ownership import RowOwnership
from service.core.memory.view import View
from service.core.prediction import ranking
from service.core.prediction.ranking import (
    Ranker,
    Ranking,
    places,
)
from service.core.prediction.reranking import text_overlap
from service.core.text_identity import IdentityLookup
from service.core.times import NEVER
from service.core.types import Floats, PredictOptions, RowKind, Rows
from tests.support.equations import ranked_by_equations
from training.evaluation.prediction import order_by_id, predict

TAU, RANKER = 0.07, Ranker()
LearnedRow = tuple[RowKind, list[int], list[float]]  # kind, votes, weights of the votes
IDS = [f"label-{number}" for number in range(60, 0, -1)]  # in another order than the columns


def view_of(
    instances: list[list[int]],
    *,
    labels: int = len(IDS),
    parts: tuple[RowPart, ...] = (),
    deleted: list[int] | None = None,
    vote_weights: list[float] | None = None,
) -> View:
    """A view with these rows of Y and no index."""
    counts = [0, *(len(votes) for votes in instances)]
    bundle: Any = SimpleNamespace(
        instances=len(instances),
        labels=labels,
        indptr=np.cumsum(counts),
        indices=np.array([column for votes in instances for column in votes], np.int32),
        vote_weights=constant(np.float32(1), sum(counts))
        if vote_weights is None
        else np.array(vote_weights, np.float32),
        vote_hours=constant(np.int32(NEVER), sum(counts)),
    )
    ids: Any = IDS
    return View(
        version=0,
        base=BaseRows.of(bundle),
        learned=LearnedRows(first=len(instances) + labels, parts=parts),
        labels=LabelTable(
            base_ids=ids,
            base_texts=ids,
            base_details=LabelDetails(None),
            base_identities=IdentityLookup(ids),
            columns=len(IDS),
            live=HashTrieMap(),
            deleted=np.array(deleted or [], np.int32),
        ),
        ownership=RowOwnership(),
    )


def live_rows(first: int, rows: list[LearnedRow]) -> LiveRows:
    vector = np.ones(1, np.float16)
    return LiveRows.block(first=first, capacity=max(1, len(rows)), dimension=1).append(
        [
            NewRow(
                kind=kind,
                text="",
                votes=np.array(votes, np.int32),
                vector=vector,
                weights=weights,
            )
            for kind, votes, weights in rows
        ]
    )


def ranked(view: View, rows: Rows, similarities: Floats, options: PredictOptions) -> Ranking:
    return RANKER.rank(
        view,
        rows=rows,
        similarities=similarities,
        tau=TAU,
        memorization=options.memorization,
        top_k=options.top_k,
    )


@pytest.mark.parametrize(
    ("vote_weights", "scores"), [(None, [0.5, 0.1]), ([1.5, 0.5], [0.45, 0.15])]
)
def test_two_keys_by_hand(vote_weights: list[float] | None, scores: list[float]) -> None:
    """At lambda = 0.2, an instance and label 1 have equal similarities and share the weight.

    The instance votes for labels 0 and 1, perhaps with the weights 1.5 and 0.5.
    """
    view = view_of([[0, 1]], labels=2, vote_weights=vote_weights)
    rows, similarities = np.array([0, 2]), np.ones(2, np.float32)
    found = ranked(view, rows, similarities, PredictOptions(memorization=0.2))
    assert found.weights == pytest.approx([0.1, 0.4])
    assert found.columns == [1, 0]
    assert found.scores == pytest.approx(scores)


@pytest.mark.parametrize("vote_weights", [[], [3.0, 1.0]])
def test_rows_learned_since_the_bundle_vote_by_their_kind_and_weights(
    vote_weights: list[float],
) -> None:
    clicked = (RowKind.INSTANCE, [5, 0], vote_weights)
    learned = live_rows(3, [(RowKind.LABEL, [4], []), clicked])
    view = view_of([[0]], labels=2, parts=(learned,))
    rows, similarities = np.array([4, 3, 0, 1]), np.zeros(4, np.float32)
    found = ranked(view, rows, similarities, PredictOptions(memorization=0.25))
    [first, _] = vote_weights or [1.0, 1.0]
    assert dict(zip(found.columns, found.scores, strict=True)) == pytest.approx(
        {0: 0.0625 + 0.0625 + 0.1875, 5: first * 0.0625, 4: 0.1875}
    )


def test_ties_are_in_order_of_id_however_many_there_are() -> None:
    view = view_of([list(range(len(IDS)))])
    found = ranked(view, np.zeros(1, int), np.ones(1, np.float32), PredictOptions())
    assert [IDS[column] for column in found.columns] == sorted(IDS)[:10]


@pytest.mark.parametrize(("rows", "columns"), [([], []), ([0], [1])])
def test_no_keys_have_no_labels_and_deleted_labels_get_no_score(
    rows: list[int], columns: list[int]
) -> None:
    view = view_of([[0, 1, 2]], deleted=[0, 2])
    similarities = np.ones(len(rows), np.float32)
    found = ranked(view, np.array(rows, int), similarities, PredictOptions())
    assert (found.columns, len(found.weights)) == (columns, len(rows))


@pytest.mark.parametrize(
    ("row", "indptr"), [(3, [0, 1]), (10**12, [0, 1]), (0, [0, 2]), (0, [0, -1]), (0, [1, 0])]
)
def test_a_row_or_vote_outside_the_memory_is_an_error_and_not_read(
    row: int, indptr: list[int]
) -> None:
    view = view_of([[0]], labels=2)
    view.bundle.indptr[:] = indptr
    with pytest.raises(IndexError, match="outside the memory"):
        ranked(view, np.array([row]), np.ones(1, np.float32), PredictOptions())


@st.composite
def views(draw: st.DrawFn) -> View:
    """Views with instances, labels and deleted labels, with or without sealed and live rows.

    The bundle's votes, the learned rows' votes, both or neither have weights.
    """
    votes = st.lists(st.integers(0, len(IDS) - 1), max_size=6, unique=True)
    instances = draw(st.lists(votes, max_size=80))
    labels = draw(st.integers(1, len(IDS)))
    weighted, drawn = draw(st.booleans()), np.random.default_rng(draw(st.integers(0, 2**32)))
    learned = st.lists(
        st.tuples(
            st.sampled_from(RowKind), votes, st.booleans() if weighted else st.just(False)
        ).map(lambda row: (*row[:2], drawn.random(len(row[1])).tolist() if row[2] else [])),
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
    weights = st.lists(st.floats(-4.0, 9.0, width=32), min_size=count, max_size=count)
    return view_of(
        instances,
        labels=labels,
        parts=tuple(parts),
        deleted=sorted(deleted),
        vote_weights=draw(st.none() | weights),
    )


@given(
    data=st.data(),
    view=views(),
    memorization=st.sampled_from([0.0, 0.3, 0.4, 0.5, 1.0]),
    top_k=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_scores_are_those_of_the_equations_to_the_bit(
    data: st.DataObject, view: View, memorization: float, top_k: int, seed: int
) -> None:
    """Few distinct similarities make ties; with many keys, numpy adds them in several blocks."""
    stored = view.alive_rows()
    rng = np.random.default_rng(seed)
    rows = rng.permutation(stored)[: data.draw(st.integers(0, len(stored)))]
    steps = data.draw(st.sampled_from([1, 3, 1000]))
    similarities = -np.sort(rng.integers(-steps, steps + 1, len(rows)) / steps).astype(np.float32)
    options = PredictOptions(top_k=top_k, memorization=memorization)
    columns, scores, weights = ranked_by_equations(
        view, rows=rows, similarities=similarities, tau=TAU, options=options
    )
    found = ranked(view, rows, similarities, options)
    assert found.columns == columns
    assert np.array(found.scores).tobytes() == np.array(scores).tobytes()
    assert found.weights.tobytes() == weights.tobytes()


@given(view=views(), memorization=st.sampled_from([0.0, 0.3, 1.0]), data=st.data())
def test_many_queries_at_once_are_ranked_like_one_after_the_other(
    view: View, memorization: float, data: st.DataObject
) -> None:
    stored, depth = view.alive_rows(), data.draw(st.integers(1, 90))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    steps, top_k = data.draw(st.sampled_from([1, 3, 1000])), data.draw(st.integers(1, 12))
    counts = data.draw(st.lists(st.integers(0, min(depth, len(stored))), min_size=1, max_size=6))
    rows = np.full((len(counts), depth), -1, np.int64)
    similarities = np.full(rows.shape, -np.inf, np.float32)
    for query, count in enumerate(counts):
        rows[query, :count] = rng.permutation(stored)[:count]
        similarities[query, :count] = -np.sort(rng.integers(-steps, steps + 1, count) / steps)
    at_once = predict(
        view,
        (similarities, rows),
        tau=TAU,
        memorization=memorization,
        top_k=top_k,
        order=order_by_id(IDS),
    )
    options = PredictOptions(top_k=top_k, memorization=memorization)
    for query, count in enumerate(counts):
        expected = ranked(view, rows[query, :count], similarities[query, :count], options)
        found = len(expected.columns)
        assert at_once.labels[query].tolist() == [*expected.columns, *[-1] * (top_k - found)]
        scores = [*expected.scores, *[0.0] * (top_k - found)]
        assert at_once.scores[query].tobytes() == np.array(scores).tobytes()


@pytest.mark.parametrize("entries_a_vote", [0, 1_000_000])
@given(
    labels=st.lists(st.integers(0, 40), max_size=300),
    columns=st.lists(st.integers(0, 40), unique=True, max_size=30),
)
def test_places_are_found_by_a_search_and_by_a_table(
    entries_a_vote: int, labels: list[int], columns: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "TABLE_ENTRIES_A_VOTE", entries_a_vote)
        found = places(np.array(labels, np.int32), among=columns)
    assert found.tolist() == [columns.index(label) if label in columns else -1 for label in labels]


def test_threads_share_a_ranker_also_while_another_bundle_takes_over() -> None:
    options = PredictOptions()
    small, large = view_of([[0]]), view_of([[1, 2]] * 500)

    def rank(number: int) -> list[int]:
        view = (small, large)[number % 2]
        rows = np.arange(view.bundle.instances)
        return ranked(view, rows, np.ones(len(rows), np.float32), options).columns

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(rank, range(400))) == [[0], [2, 1]] * 200


@pytest.mark.parametrize("library", ["missing.so", "other"])
@pytest.mark.parametrize(
    ("module", "opened"), [(ranking, Ranker), (text_overlap, text_overlap.TextComparison)]
)
def test_a_missing_library_and_one_of_another_version_are_errors_that_say_how_to_build_it(
    module: ModuleType,
    opened: Callable[[], object],
    library: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    path = Path(orjson.orjson.__file__) if library == "other" else tmp_path / library
    monkeypatch.setattr(module, "LIBRARY", path)
    with pytest.raises(NotCompiled, match=r"was not built: in .*pip install -e \."):
        opened()
