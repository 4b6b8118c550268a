"""Bundle and log become a data set: weighted pairs, labels, and the test split.

Old clicks weigh less than new ones. A moment is a time or the number of an event.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.command_line import run
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.manifest import LearnedFacts
from service.core.changes import Change
from service.core.errors import InvalidInput
from service.core.label_log import LabelLog
from service.core.memory.decay import LEAST_SHARE
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.times import SECOND
from service.core.types import NewLabel
from tests.support.changes import click, delete, put, unlearn
from tests.support.tiny.bundles import INSTANCES, LABELS
from tests.support.tiny.export import tiny_dataset
from tests.support.views import described_rows
from training.__main__ import app
from training.datasets.dataset import Dataset, Split, Texts
from training.datasets.learned.history import History, Moment
from training.datasets.pair_weights import DAY
from training.datasets.train_test_split import is_test

Learn = Callable[..., Dataset]
KAYAK = NewLabel(id="kayak", text="sea kayak", queries=("boat for one",))


def pairs(split: Split, dataset: Dataset) -> dict[tuple[str, str], float]:
    """Map each (query, label id) to its weight."""
    entries = split.labels_of.tocoo()
    return {
        (split.instances.texts[row], dataset.labels.uids[column]): float(weight)
        for row, column, weight in zip(entries.row, entries.col, entries.data, strict=True)
    }


def train(dataset: Dataset) -> dict[tuple[str, str], float]:
    return pairs(dataset.train, dataset)


BEFORE = {(query, label): 1.0 for query, labels in INSTANCES.items() for label in labels}


def test_an_empty_log_leaves_the_bundles_rows_with_labels(learn: Learn) -> None:
    learned = learn()
    assert train(learned) == BEFORE
    assert learned.labels.uids == tuple(LABELS)
    assert learned.labels.texts == tuple(LABELS.values())


@pytest.mark.parametrize(("first", "second", "third"), [(1.0, 1.0, 1.0), (2.5, 0.25, 4.0)])
def test_clicks_of_a_pair_are_their_weights_on_top_of_the_training_row(
    first: float, second: float, third: float, learn: Learn
) -> None:
    learned = learn(
        click(1, "cook outdoors", "stove", "lamp", weight=first),
        click(2, "cook outdoors", "stove", weight=second),
        click(3, "a new query", "tent", weight=third),
    )
    assert train(learned) == BEFORE | {
        ("cook outdoors", "stove"): 1.0 + first + second,
        ("cook outdoors", "lamp"): first,
        ("a new query", "tent"): third,
    }


def test_a_click_in_a_snapshot_of_another_log_counts_as_much_as_it_weighs_there(
    trigram_bundle: Bundle, learn: Learn, tmp_path: Path
) -> None:
    memory = KnowledgeMemory(trigram_bundle)
    memory.apply([click(1, "a query", "tent", "lamp", weight=3.0), click(2, "a query", "lamp")])
    write_snapshot(memory.view, tmp_path / "s", name="s", log="0f" * 16)
    learned = learn(bundle=open_bundle(tmp_path / "s"))
    assert train(learned) == BEFORE | {("a query", "tent"): 3.0, ("a query", "lamp"): 1.0}


def test_a_posted_label_brings_its_queries_which_weigh_one_until_they_are_clicked(
    learn: Learn,
) -> None:
    boats = NewLabel(id="kayak", text="kayak", queries=("boat for one", "paddling"))
    learned = learn(put(1, KAYAK), put(2, boats), click(3, "paddling", "kayak"))
    learned = learn(click(4, "paddling", "kayak"))
    assert learned.labels.uids == (*LABELS, "kayak")
    assert learned.labels.texts[-1] == "kayak"
    assert train(learned) == BEFORE | {("boat for one", "kayak"): 1.0, ("paddling", "kayak"): 2.0}


def test_metadata_of_labels_become_their_fields(learn: Learn) -> None:
    assert learn().label_fields is None
    learned = learn(put(1, replace(KAYAK, metadata={"price": 3, "sizes": ("s", "m")})))
    fields = dict(zip(learned.labels.uids, learned.label_fields or (), strict=True))
    assert fields.pop("kayak") == {"price": 3, "sizes": ("s", "m")}
    assert list(fields) == [*LABELS] and not any(fields.values())
    tent = NewLabel(id="tent", text=LABELS["tent"], metadata={"price": 9})
    learned = learn(put(2, tent), delete(3, "boots"), data=tiny_dataset())
    fields = dict(zip(learned.labels.uids, learned.label_fields or (), strict=True))
    assert (fields["tent"], "boots" in fields) == ({"price": 9}, False)


def test_aliases_of_posted_labels_are_kept_and_are_no_rows(
    trigram_bundle: Bundle, learn: Learn, tmp_path: Path
) -> None:
    assert learn().label_aliases is None
    kayak = replace(KAYAK, aliases=("canoe",))
    memory = KnowledgeMemory(trigram_bundle)
    memory.apply([put(1, kayak)])
    write_snapshot(memory.view, tmp_path / "s", name="s", log="0f" * 16)
    for learned in (learn(put(1, kayak)), learn(bundle=open_bundle(tmp_path / "s"))):
        aliases = dict(zip(learned.labels.uids, learned.label_aliases or (), strict=True))
        assert aliases.pop("kayak") == ("canoe",)
        assert not any(aliases.values())
        assert "canoe" not in learned.train.instances.texts


def test_a_deleted_label_takes_its_pairs_along_and_starts_anew(learn: Learn) -> None:
    kept = {pair: weight for pair, weight in BEFORE.items() if pair[1] != "boots"}
    learned = learn(click(1, "mud", "boots"), delete(2, "boots"))
    assert train(learned) == kept
    assert "boots" not in learned.labels.uids
    posted_again = put(3, NewLabel(id="boots", text="rubber boots"))
    learned = learn(posted_again, click(4, "rain", "boots"))
    assert train(learned) == kept | {("rain", "boots"): 1.0}


def test_an_unlearned_pair_is_no_pair_until_it_is_learned_again(learn: Learn) -> None:
    query, kept = "trail footwear", {**BEFORE}
    del kept[query, "boots"]
    learned = learn(
        put(1, KAYAK),
        click(2, query, "boots", "tent", weight=2.0),
        unlearn(3, query, "boots"),
        unlearn(4, "boat for one", "kayak"),
    )
    assert train(learned) == kept | {(query, "tent"): 2.0}
    assert learned.labels.uids == (*LABELS, "kayak")
    learned = learn(click(5, query, "boots", weight=3.0))
    assert train(learned) == kept | {(query, "tent"): 2.0, (query, "boots"): 3.0}


def test_a_negative_pair_is_no_example_until_it_is_clicked_again(learn: Learn) -> None:
    query, kept = "trail footwear", {**BEFORE}
    del kept[query, "boots"]
    learned = learn(
        put(1, KAYAK),
        click(2, query, "boots"),
        click(3, query, "boots", "lamp", weight=-2.0),
        click(4, "boat for one", "kayak", weight=-1.0),
        click(5, "a bad query", "tent", weight=-1.0),
    )
    assert train(learned) == kept
    learned = learn(click(6, query, "boots"))
    assert train(learned) == BEFORE | {(query, "boots"): 2.0}  # the bundle's row plus event 6


def random_changes(count: int) -> list[Change]:
    rng = np.random.default_rng(3)
    ids, queries = [*LABELS, "n1", "n2", "n3"], [*INSTANCES, "q1", "q2", "q3", "q4"]
    changes: list[Change] = []
    for sequence in range(1, count + 1):
        label, kind = str(rng.choice(ids)), rng.random()
        query = str(rng.choice(queries))
        if kind < 0.3:
            posted = (query,) if kind < 0.2 else ()
            changes.append(put(sequence, NewLabel(id=label, text=f"text {label}", queries=posted)))
        elif kind < 0.45:
            changes.append(delete(sequence, label))
        elif kind < 0.6:
            changes.append(unlearn(sequence, query, label, str(rng.choice(ids))))
        else:
            changes.append(click(sequence, query, label, str(rng.choice(ids))))
    return changes


def served_pairs(history: History) -> set[tuple[str, str]]:
    rows = described_rows(history.view)
    return {(text, label) for kind, text, ids in rows if kind.value == "instance" for label in ids}


@pytest.mark.parametrize("snapshot_at", [None, 40])
def test_the_pairs_are_those_that_are_served(
    snapshot_at: int | None,
    history: Callable[..., History],
    learn: Learn,
    log: LabelLog,
    trigram_bundle: Bundle,
    tmp_path: Path,
) -> None:
    changes, bundle = random_changes(120), trigram_bundle
    if snapshot_at is not None:
        bundle = snapshot(history(*changes[:snapshot_at]), log, tmp_path / "s")
        changes = changes[snapshot_at:]
    read = history(*changes, bundle=bundle)
    learned = learn(bundle=bundle)
    assert set(train(learned)) == served_pairs(read)
    assert set(learned.labels.uids) == {
        read.view.labels.id_at(column)
        for column in range(read.view.labels.columns)
        if not read.view.labels.is_deleted(np.array([column], np.int32))[0]
    }


def snapshot(history: History, log: LabelLog, folder: Path) -> Bundle:
    """Write a bundle of the final state of a history."""
    chain = log.link_at(history.view.version).chain.hex()
    write_snapshot(history.view, folder, name="s", log=log.id, log_chain=chain)
    return open_bundle(folder)


def test_a_snapshot_counts_the_clicks_before_it_from_the_log(
    history: Callable[..., History], learn: Learn, log: LabelLog, tmp_path: Path
) -> None:
    clicks = [click(sequence, "a query", "tent") for sequence in (1, 2)]
    bundle = snapshot(history(*clicks), log, tmp_path / "s")
    learned = learn(click(3, "a query", "tent"), bundle=bundle)
    assert train(learned) == BEFORE | {("a query", "tent"): 3.0}


# The data set that the bundle was made from -------------------------------------------------------


def with_test(dataset: Dataset, *queries: str) -> Dataset:
    """Add test rows that copy training rows but have the texts `queries`."""
    test = dataset.train.select(np.arange(len(queries)))
    return replace(dataset, test=replace(test, instances=Texts.named_by_text(queries)))


def test_weights_test_rows_and_uids_of_the_data_are_carried_over(learn: Learn) -> None:
    data = with_test(tiny_dataset(), "jogging")
    data.train.labels_of.data[:] = 2.5
    learned = learn(
        click(1, "cook outdoors", "stove"), click(2, "jogging", "shoes", "boots"), data=data
    )
    assert train(learned) == dict.fromkeys(BEFORE, 2.5) | {("cook outdoors", "stove"): 3.5}
    assert pairs(learned.test, learned) == {("jogging", "shoes"): 2.0, ("jogging", "boots"): 1.0}


def test_clicks_that_the_training_data_holds_are_not_counted_twice(
    learn: Learn, log: LabelLog
) -> None:
    first = learn(click(1, "cook outdoors", "stove"), put(2, KAYAK), data=tiny_dataset())
    assert first.learned == LearnedFacts(log=log.id, version=2)
    assert train(learn(data=tiny_dataset())) == train(first)
    again = learn(click(3, "cook outdoors", "stove"), held=first.learned)
    assert train(again)["cook outdoors", "stove"] == 2.0  # the bundle's row plus event 3


@pytest.mark.parametrize("change", ["weight", "row", "test row", "label", "order"])
def test_the_digest_of_a_bundle_tells_other_data(
    trigram_bundle: Bundle, learn: Learn, change: str
) -> None:
    """Also data that have all rows of the bundle, and more."""
    data = with_test(tiny_dataset(), "jogging")
    bundle = replace(trigram_bundle, manifest=replace(trigram_bundle.manifest, data=data.digest()))
    learn(bundle=bundle, data=data)
    train, rows = data.train, np.arange(len(data.train))
    if change == "weight":
        other = replace(data, train=replace(train, labels_of=train.labels_of * 2))
    elif change == "row":
        texts = replace(train.instances, texts=(*train.instances.texts[:-1], "more"))
        other = replace(data, train=replace(train, instances=texts))
    elif change == "test row":
        other = with_test(data, "jogging", "cooking")
    elif change == "label":
        texts = tuple(f"{text}s" for text in data.labels.texts)
        other = replace(data, labels=replace(data.labels, texts=texts))
    else:
        other = replace(data, train=train.select(rows[::-1]))
    with pytest.raises(InvalidInput, match=r"other rows than those of .*leave --data out"):
        learn(bundle=bundle, data=other)


def test_pairs_are_left_out_of_the_data_as_well(learn: Learn, log: LabelLog) -> None:
    data = with_test(tiny_dataset(), "jogging", "walking")
    changes = [
        unlearn(1, "jogging", "shoes"),
        unlearn(2, "light for a tent", "lamp"),
        click(3, "walking", "boots", weight=-1.0),
    ]
    learned = learn(*changes, data=data, since=Moment(sequence=9))
    kept = {**BEFORE}
    del kept["light for a tent", "lamp"]
    assert train(learned) == kept
    assert pairs(learned.test, learned) == {("walking", "shoes"): 1.0}
    # The data that is made after an unlearning may hold the pair again.
    held = LearnedFacts(log=log.id, version=3)
    assert train(learn(data=replace(data, learned=held))) == BEFORE


# Only what was learned since a moment -------------------------------------------------------------


def test_since_adds_only_what_was_learned_later(learn: Learn) -> None:
    changes = [
        put(1, KAYAK),
        put(2, NewLabel(id="raft", text="raft")),
        click(3, "early", "tent"),
        click(4, "late", "tent", "raft"),
        click(5, "early", "lamp"),
        delete(6, "boots"),
    ]
    learned = learn(*changes, since=Moment(sequence=4))
    kept = {pair: weight for pair, weight in BEFORE.items() if pair[1] != "boots"}
    new = [("late", "tent"), ("late", "raft"), ("early", "lamp")]
    assert train(learned) == kept | dict.fromkeys(new, 1.0)
    assert learned.labels.uids == (*(label for label in LABELS if label != "boots"), "raft")


def test_recent_queries_are_the_test_split(learn: Learn) -> None:
    changes = [
        click(1, "early", "tent"),
        click(2, "late", "tent"),
        click(3, "early", "lamp"),
        click(4, "cook outdoors", "lamp"),
        click(5, "Cook  OUTDOORS", "tent"),  # another spelling of an earlier query
    ]
    learned = learn(*changes, recent_from=Moment(sequence=2))
    assert pairs(learned.test, learned) == {("late", "tent"): 1.0}
    assert train(learned)["early", "lamp"] == train(learned)["cook outdoors", "lamp"] == 1.0


def test_a_hash_splits_the_queries_otherwise(learn: Learn) -> None:
    learned = learn(test_fraction=0.5)
    texts = {query for query, labels in INSTANCES.items() if labels}
    test = {text for text in texts if is_test(text, fraction=0.5, seed=0)}
    assert set(learned.test.instances.texts) == test
    assert set(learned.train.instances.texts) == texts - test


def test_another_spelling_of_a_test_query_does_not_train(learn: Learn) -> None:
    data = with_test(tiny_dataset(), "jogging")
    carried = learn(click(1, "Jogging", "lamp"), click(2, "Cook outdoors", "lamp"), data=data)
    assert set(carried.test.instances.texts) == {"jogging", "Jogging"}
    assert "Cook outdoors" in carried.train.instances.texts


Write = Callable[..., None]


@pytest.fixture
def write(history: Callable[..., History], monkeypatch: pytest.MonkeyPatch) -> Write:
    """`write(day, *changes)` appends changes to the log with the time of this day."""

    def written(day: float, *changes: Change) -> None:
        with monkeypatch.context() as clock:
            clock.setattr("service.core.label_log.rows.time.time", lambda: day * DAY)
            history(*changes)

    return written


def weights(dataset: Dataset, query: str) -> dict[str, float]:
    """Map the label ids of a training query to their weights."""
    row = dataset.train.labels_of[dataset.train.instances.texts.index(query)]
    ids = (dataset.labels.uids[column] for column in row.indices)
    return dict(zip(ids, row.data.tolist(), strict=True))


def test_a_click_counts_less_the_older_it_is_than_the_newest_event(
    write: Write, learn: Learn
) -> None:
    """20 and 10 days old, with a half-life of 10 days: 3 * 0.25 + 1 * 0.5 + 1, and 2 * 0.5."""
    write(100, click(1, "mud", "boots", weight=3.0))
    write(110, click(2, "mud", "boots"), click(3, "mud", "tent", weight=2.0))
    write(120, click(4, "mud", "boots"))
    assert weights(learn(half_life=10.0), "mud") == {"boots": 2.25, "tent": 1.0}
    assert weights(learn(), "mud") == {"boots": 5.0, "tent": 2.0}


def test_a_click_with_a_time_is_as_old_as_it_says(write: Write, learn: Learn) -> None:
    write(110, click(1, "mud", "boots", weight=3.0, at=round(100 * DAY * SECOND)))
    write(120, click(2, "mud", "tent"))
    assert weights(learn(half_life=10.0), "mud") == {"boots": 0.75, "tent": 1.0}


def test_the_training_rows_and_posted_queries_keep_their_weights(
    write: Write, learn: Learn
) -> None:
    kayak = NewLabel(id="kayak", text="sea kayak", queries=("paddling",))
    write(0, put(1, kayak), click(2, "cook outdoors", "stove"))
    write(10, put(3, NewLabel(id="raft", text="raft")))
    learned = learn(half_life=10.0)
    assert weights(learned, "paddling") == {"kayak": 1.0}
    assert weights(learned, "cook outdoors") == {"stove": 1.5}


def test_a_click_of_long_ago_is_still_a_pair(write: Write, learn: Learn) -> None:
    write(0, click(1, "mud", "boots"))
    write(20_000, click(2, "rain", "boots"))
    assert weights(learn(half_life=1.0), "mud") == {"boots": LEAST_SHARE}


def test_a_click_that_arrives_late_ends_no_newer_one(write: Write, learn: Learn) -> None:
    write(
        100,
        click(1, "mud", "boots", weight=3.0, at=round(90 * DAY * SECOND)),
        click(2, "mud", "boots", weight=-1.0, at=round(80 * DAY * SECOND)),  # before the click
        click(3, "rain", "boots", weight=-1.0, at=round(90 * DAY * SECOND)),
        click(
            4, "rain", "boots", weight=3.0, at=round(80 * DAY * SECOND)
        ),  # before it was said to be wrong
        click(5, "rain", "tent"),
    )
    learned = learn()
    assert weights(learned, "mud") == {"boots": 3.0}
    assert weights(learned, "rain") == {"tent": 1.0}
    write(110, click(6, "rain", "boots", weight=2.0, at=round(100 * DAY * SECOND)))
    assert weights(learn(), "rain") == {"boots": 2.0, "tent": 1.0}


@pytest.mark.parametrize("days", ["0", "-1", "inf", "nan"])
def test_a_half_life_is_a_positive_number_of_days(
    days: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["data", "log", "--bundle", "b", "--state", "s", "--out", "o", "--half-life", days]
    assert run(app, command) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: the half-life must be a positive number of days")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1200", Moment(sequence=1200)),
        ("@12.5", Moment(seconds=12.5)),
        ("1970-01-02", Moment(seconds=86_400.0)),
        ("1970-01-01T01:00+01:00", Moment(seconds=0.0)),
    ],
)
def test_moments_are_read(text: str, moment: Moment) -> None:
    assert Moment.parse(text, option="--since") == moment


@pytest.mark.parametrize("text", ["yesterday", "@nan", "@", "", "-3"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=rf"--since must be a date.*not '{text}'"):
        Moment.parse(text, option="--since")
