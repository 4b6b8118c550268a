"""Counted clicks: a query's votes are in proportion to all its clicks, trained and posted."""

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.memory.decay import HOUR
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.row_ownership import NO_CLICK, TrainedScale
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import PredictOptions
from tests.support.changes import ENCODER, click, seal, take_back
from tests.support.histories.memory import answers
from tests.support.tiny.bundles import Catalogue, make_bundle
from tests.support.views import alive_rows, vote_weights

# "wok" was clicked 229 times for the pan, 1 time for the lid; "lamp" 3 times.
CATALOGUE = Catalogue(
    labels={"pan": "iron pan", "lid": "glass lid", "lamp": "lamp"},
    instances={"wok": ("pan", "lid"), "lamp": ("lamp",)},
)
TRAINED = {"wok": {"pan": 229.0, "lid": 1.0}, "lamp": {"lamp": 3.0}}
WEIGHTS = (229 / 115, 1 / 115, 1.0)

posts = st.lists(
    st.tuples(
        st.sampled_from(["wok", "lamp", "a new query"]),
        st.lists(st.sampled_from(list(CATALOGUE.labels)), min_size=1, max_size=3, unique=True),
        st.sampled_from([1.0, 2.0, 30.0, 0.5]),
    ),
    max_size=6,
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("clicks") / "b"
    clicks = {"vote_weights": WEIGHTS, "vote_clicks": (115.0, 3.0)}
    return open_bundle(make_bundle(folder, CATALOGUE, encoder=ENCODER, **clicks))


def memory_of(bundle: Bundle, version: int = 0) -> KnowledgeMemory:
    return KnowledgeMemory(bundle, MemoryLimits(seal_rows=3, fan_out=2), version=version)


def shares(view: View, query: str) -> dict[str, float]:
    """Return each label's share of the votes of all rows with exactly this text."""
    rows = np.array([row for row in alive_rows(view).tolist() if view.text(row) == query])
    rows = rows[view.is_instance(rows)]
    columns, _, weights = view.weighted_votes(rows)
    summed = Counter[str]()
    for column, weight in zip(columns.tolist(), weights, strict=True):
        summed[view.labels.at(column).id] += float(weight)
    return {one: weight / summed.total() for one, weight in summed.items()}


def expected(query: str, history: Sequence[tuple[str, list[str], float]]) -> dict[str, float]:
    clicks = Counter[str](TRAINED.get(query, {}))
    for asked, labels, count in history:
        clicks.update(dict.fromkeys(labels if asked == query else (), count))
    return {one: count / clicks.total() for one, count in clicks.items()}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=posts, cut=st.integers(0, 6))
def test_votes_are_in_proportion_to_all_clicks(
    bundle: Bundle,
    tmp_path_factory: pytest.TempPathFactory,
    history: list[tuple[str, list[str], float]],
    cut: int,
) -> None:
    """Also if a snapshot is written and opened somewhere in between."""
    memory = memory_of(bundle)
    for place, (query, labels, count) in enumerate(history):
        if place == cut:
            folder = tmp_path_factory.mktemp("cut") / "s"
            write_snapshot(memory.view, folder, name="s", log="0f" * 16)
            memory = memory_of(open_bundle(folder), place)
        memory.apply([click(place + 1, query, *labels, clicks=count)])
    for query in ("wok", "lamp", "a new query"):
        wanted = expected(query, history)
        assert shares(memory.view, query) == pytest.approx(wanted, rel=1e-5)
    of_new = [weight for (query, _), weight in vote_weights(memory.view).items() if "new" in query]
    assert not of_new or max(of_new) <= len(CATALOGUE.labels)  # as of a trained row


def first(view: View, query: str) -> str:
    options = PredictOptions(top_k=1, memorization=1.0, depth=100, words=0.4)
    [prediction] = Predictor(ENCODER, tau=0.05).predict(view, [query], options).predictions
    return prediction.keywords[0].id


def test_one_click_does_not_outvote_a_trained_query(bundle: Bundle) -> None:
    memory = memory_of(bundle)
    for count in range(1, 230):
        view = memory.apply([click(count, "wok", "lamp", clicks=1)])
        assert first(view, "wok") == "pan" or count > 226
    assert first(memory.apply([click(230, "wok", "lamp", clicks=10)]), "wok") == "lamp"
    assert first(memory.apply([take_back(231, "wok", "lamp")]), "wok") == "pan"


def test_counted_clicks_of_a_trained_query_are_no_posted_row(bundle: Bundle) -> None:
    """Words add more to posted rows, so one click would count for more than one."""
    view = memory_of(bundle).apply([click(1, "wok", "lamp", clicks=1), click(2, "new", "pan")])
    rows = alive_rows(view)[-2:]
    assert view.posted(rows).tolist() == [False, True]
    assert view.origins(rows).tolist() == [0, -1]


def test_a_snapshot_and_sealed_rows_answer_alike(bundle: Bundle, tmp_path: Path) -> None:
    memory = memory_of(bundle)
    memory.apply([click(1, "wok", "lamp", clicks=4), click(2, "new", "pan", "lid", clicks=2)])
    memory.apply([click(3, "new", "pan", clicks=9), click(4, "x", "lid", clicks=5)])
    before = answers(memory.view)
    seal(memory, tmp_path)
    assert answers(memory.view) == before
    write_snapshot(memory.view, tmp_path / "s", name="s", log="0f" * 16)
    again = memory_of(open_bundle(tmp_path / "s"), 4)
    assert answers(again.view) == before
    more = [click(5, "new", "lid", clicks=1), click(6, "wok", "lamp", "pan", clicks=1)]
    assert vote_weights(again.apply(more)) == pytest.approx(vote_weights(memory.apply(more)))


def test_more_clicks_in_the_same_proportion_change_no_row(bundle: Bundle) -> None:
    memory = memory_of(bundle)
    memory.apply([click(1, "new", "pan", clicks=1)])
    before = alive_rows(memory.view).tolist()
    view = memory.apply([click(2, "new", "pan", clicks=50)])
    assert alive_rows(view).tolist() == before
    assert view.ownership.click("new").scale == 51.0


def test_a_click_ends_a_negative_pair(bundle: Bundle) -> None:
    memory = memory_of(bundle)
    memory.apply([click(1, "wok", "pan", weight=-2.0), click(2, "wok", "pan", clicks=23)])
    assert vote_weights(memory.view)["wok", "pan"] == pytest.approx(23 / 115 + 229 / 115, abs=2)
    assert memory.view.ownership.click("wok").votes[0].weight == pytest.approx(0.2)


def test_an_older_time_makes_no_pair_older() -> None:
    clicked = [((0,), 1.0, 9, None), ((0, 1), 2.0, 5, None), ((1,), 1.0, 7, TrainedScale(0, 2.0))]
    click = NO_CLICK
    for columns, count, hour, scale in clicked:
        click = click.counted(columns, count, hour, scale)
    assert {column: vote.hour for column, vote in click.votes.items()} == {0: 9, 1: 7}


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_clicks_with_times_may_arrive_in_any_order(bundle: Bundle, order: tuple[int, ...]) -> None:
    changes = [
        ("wok", "pan", {"weight": 5.0, "at": 9.0 * HOUR}),
        ("wok", "pan", {"weight": -1.0, "at": 7.0 * HOUR}),
        ("wok", "pan", {"weight": 2.0, "at": 30.0 * HOUR}),
        ("wok", "lid", {"at": 8.0 * HOUR}),
    ]
    memory = memory_of(bundle)
    for sequence, place in enumerate(order, start=1):
        query, label, how = changes[place]
        memory.apply([click(sequence, query, label, **how)])
    votes = memory.view.ownership.click("wok").votes
    assert {column: tuple(vote) for column, vote in votes.items()} == {0: (2.0, 30), 1: (1.0, 8)}
