"""Clicks that have a time lose weight; the hour is that of the view that answers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.errors import BundleAltered
from service.core.files.arrays import is_constant
from service.core.memory.decay import HOUR, LEAST_SHARE, NEVER, Decay, Vote, hour_of
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.prediction.ranking import Ranker
from service.core.types import PredictOptions
from tests.support.changes import ENCODER, click
from tests.support.equations import ranked_by_equations
from tests.support.histories.memory import answers
from tests.support.tiny.bundles import Catalogue, sign_again
from tests.support.views import vote_weights

DAY = 24 * HOUR
NOW = 20_000 * DAY
CATALOGUE = Catalogue(labels={"tent": "tent", "lamp": "light"}, instances={"night": ("lamp",)})
CLICKS = [
    click(1, "hike", "tent", at=NOW - 10 * DAY),
    click(2, "hike", "lamp", weight=4.0),
    click(3, "dusk", "lamp", weight=-3.0, at=NOW - 20 * DAY),
]


@pytest.fixture
def folder(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle(CATALOGUE, encoder=ENCODER)


@pytest.fixture
def memory(folder: Path) -> KnowledgeMemory:
    opened = KnowledgeMemory(open_bundle(folder), half_life=10.0)
    opened.apply(CLICKS)
    return opened


def test_a_weight_halves_per_half_life_and_keeps_its_sign() -> None:
    decay = Decay(hour=hour_of(NOW), half_life=10.0)
    ages = [0, 10, 20, -5, 100_000]  # days
    hours = np.array([*(hour_of(NOW - DAY * age) for age in ages), NEVER], np.int32)
    left = decay.of(np.ones(6, np.float32), hours)
    assert left.tolist() == pytest.approx([1.0, 0.5, 0.25, 1.0, LEAST_SHARE, 1.0])
    negative = decay.of(np.full(6, -2.0, np.float32), hours)
    assert negative.tolist() == pytest.approx([-2.0, -1.0, -0.5, -2.0, -2 * LEAST_SHARE, -2.0])
    assert (left > 0).all() and (negative < 0).all()


def test_a_view_at_a_later_time_has_less_of_the_weights(memory: KnowledgeMemory) -> None:
    assert vote_weights(memory.view) == {("hike", "lamp"): 4.0, ("dusk", "lamp"): -3.0}
    assert vote_weights(memory.active(memory.view, NOW)) == {
        ("hike", "tent"): 0.5,
        ("hike", "lamp"): 4.0,
        ("dusk", "lamp"): -0.75,
    }
    assert vote_weights(memory.active(memory.view, NOW + 10 * DAY))["hike", "tent"] == 0.25


def test_a_view_answers_for_an_hour(memory: KnowledgeMemory) -> None:
    first = memory.active(memory.view, NOW)
    assert memory.active(memory.view, NOW + HOUR - 1) is first
    assert memory.active(memory.view, NOW + HOUR) is not first


def test_nothing_decays_without_a_half_life_or_a_time(folder: Path) -> None:
    without = KnowledgeMemory(open_bundle(folder))
    view = without.apply(CLICKS)
    assert without.active(view, NOW) is view
    timeless = KnowledgeMemory(open_bundle(folder), half_life=10.0)
    view = timeless.apply([click(1, "hike", "tent", weight=2.0)])
    assert timeless.active(view, NOW) is view


@settings(max_examples=200)
@given(
    weights=st.lists(st.floats(2.0**-100, 1_000.0, width=32), min_size=2, max_size=5),
    days=st.integers(0, 400_000),
    half_life=st.floats(1e-3, 36_500.0),
)
def test_votes_of_one_age_keep_their_ratios(
    weights: list[float], days: int, half_life: float
) -> None:
    decay = Decay(hour=days * 24, half_life=half_life)
    whole = np.array(weights, np.float32)
    left = decay.of(whole, np.zeros(len(whole), np.int32))
    assert left is not None and (left > 0).all() and (left <= whole).all()
    ratios = left.astype(np.float64) / whole
    assert ratios == pytest.approx(np.full(len(whole), ratios[0]), rel=1e-6)


@given(clicks=st.permutations(range(5)), weights=st.lists(st.sampled_from([-1.0, 1.0, 3.0])))
def test_a_click_that_arrives_late_is_none(
    trigram_bundle: Bundle, clicks: list[int], weights: list[float]
) -> None:
    """In whatever order clicks arrive, the newest one of the pair is its vote."""
    memory = KnowledgeMemory(trigram_bundle, half_life=10.0)
    kept = dict(enumerate((weights + [2.0] * 5)[:5]))
    for sequence, day in enumerate(clicks, start=1):
        memory.apply([click(sequence, "hike", "tent", weight=kept[day], at=NOW + day * DAY)])
    memory.apply([click(6, "hike", "tent", "lamp", weight=7.0, at=NOW + DAY)])  # new for the lamp
    votes = memory.view.ownership.special_votes_of("hike")
    tent, lamp = map(memory.view.labels.column, ("tent", "lamp"))
    assert votes[tent] == Vote(weight=kept[4], hour=hour_of(NOW + 4 * DAY))
    assert votes[lamp] == Vote(weight=7.0, hour=hour_of(NOW + DAY))


def test_the_last_click_of_a_pair_sets_its_time(memory: KnowledgeMemory) -> None:
    memory.apply([click(4, "hike", "tent", at=NOW - 10 * DAY + 60)])  # in the same hour
    assert (memory.view.live_rows, memory.view.dead_rows) == (3, 1)
    memory.apply([click(5, "hike", "tent", at=NOW)])
    assert ("hike", "tent") not in vote_weights(memory.active(memory.view, NOW))
    memory.apply([click(6, "hike", "tent")])
    assert ("hike", "tent") not in vote_weights(memory.active(memory.view, NOW + 100 * DAY))


def test_a_snapshot_keeps_weights_and_times(memory: KnowledgeMemory, tmp_path: Path) -> None:
    write_snapshot(memory.view, tmp_path / "s", name="s", log="0f" * 16)
    reopened = KnowledgeMemory(open_bundle(tmp_path / "s"), version=3, half_life=10.0)
    for later in (0, 35):
        live = memory.active(memory.view, NOW + later * DAY)
        stored = reopened.active(reopened.view, NOW + later * DAY)
        assert vote_weights(stored) == vote_weights(live)
        assert answers(stored) == answers(live)
        rows = stored.alive_rows()
        near = np.linspace(1.0, 0.0, len(rows), dtype=np.float32)
        asked = {"rows": rows, "similarities": near, "tau": 0.1}
        ranking = Ranker().rank(stored, **asked, memorization=0.5, top_k=10)
        expected = ranked_by_equations(stored, **asked, options=PredictOptions())
        assert (ranking.columns, ranking.scores) == expected[:2]
    reopened.apply([click(4, "hike", "tent")])  # replaces the row of the snapshot
    assert ("hike", "tent") not in vote_weights(reopened.active(reopened.view, NOW))


def test_a_snapshot_without_times_has_no_file_of_hours(folder: Path, tmp_path: Path) -> None:
    opened = KnowledgeMemory(open_bundle(folder), half_life=10.0)
    opened.apply([click(1, "hike", "tent", at=NOW), click(2, "hike", "tent")])
    write_snapshot(opened.view, tmp_path / "s", name="s", log="0f" * 16)
    assert is_constant(open_bundle(tmp_path / "s").vote_hours)


def test_hours_before_1970_are_refused(memory: KnowledgeMemory, tmp_path: Path) -> None:
    write_snapshot(memory.view, tmp_path / "s", name="s", log="0f" * 16)
    path = tmp_path / "s/values/hours.npy"
    path.chmod(0o644)
    np.save(path, np.load(path) * np.int32(0) - np.int32(1))
    sign_again(tmp_path / "s")
    with pytest.raises(BundleAltered, match=r"hours\.npy holds numbers from -1"):
        open_bundle(tmp_path / "s")
