"""A replay: what is posted when, which answers count, and the summary."""

from typing import Any

import numpy as np
import pytest

from tests.support.tiny.training import tiny_dataset
from training.lab import replay as stream
from training.lab.novel_split import NovelSplit, split_novel
from training.lab.replay import ExpectedLabel, Schedule, buckets, replay, schedule


class Recorder:
    """A fake service that answers every query with all known labels, the newest first."""

    def __init__(self, split: NovelSplit) -> None:
        self.known = list(split.seen.labels.uids)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.version = 0

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((path, body))
        if path == "/predict":
            assert body["min_version"] == self.version, "what was told must be known"
            keywords = [{"id": label_id} for label_id in reversed(self.known)]
            return {"results": [{"keywords": keywords[: body["top_k"]]}]}
        self.version += 1
        if path == "/labels":
            self.known += [label["id"] for label in body["labels"]]
        return {"version": self.version}

    def sent(self, path: str) -> list[dict[str, Any]]:
        return [body for asked, body in self.asked if asked == path]


@pytest.fixture(scope="module")
def split() -> NovelSplit:
    return split_novel(tiny_dataset(), fraction=0.25, seed=1)


def at_once(split: NovelSplit, time: int = 0) -> Schedule:
    rows = np.arange(len(split.everything.test))
    return Schedule(rows=rows, posted=np.full(split.facts.novel, time))


def test_a_schedule_is_drawn_once_and_for_all(split: NovelSplit) -> None:
    one, two, other = (schedule(split, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one.rows, two.rows)
    assert np.array_equal(one.posted, two.posted)
    assert not np.array_equal(one.rows, other.rows)
    assert sorted(one.rows.tolist()) == list(range(len(split.everything.test)))


def test_every_row_is_asked_and_every_label_posted_in_its_time(split: NovelSplit) -> None:
    plan, service = schedule(split, seed=3), Recorder(split)
    found = list(replay(split, plan, service, one_shot=False, learn=False))
    texts = split.everything.test.instances.texts
    assert [body["queries"][0] for body in service.sent("/predict")] == [
        texts[row] for row in plan.rows.tolist()
    ]
    posted = [label["id"] for body in service.sent("/labels") for label in body["labels"]]
    assert sorted(posted) == sorted(split.everything.labels.uids[split.facts.seen :])
    assert not service.sent("/instances")
    assert all(one.age >= 0 and one.clicks == 0 and one.rank is not None for one in found)


def test_what_is_not_posted_yet_does_not_count(split: NovelSplit) -> None:
    test = split.everything.test
    last = len(test) - 1
    found = list(replay(split, at_once(split, last), Recorder(split), one_shot=False, learn=False))
    novel = test.labels_of[last, split.facts.seen :]
    assert [one.age for one in found] == [0] * novel.nnz


def test_one_shot_posts_the_revealed_query(split: NovelSplit) -> None:
    service = Recorder(split)
    list(replay(split, at_once(split), service, one_shot=True, learn=False))
    [body] = service.sent("/labels")
    uids = split.everything.labels.uids[split.facts.seen :]
    revealed = dict(zip(uids, split.revealed(), strict=True))
    assert {label["id"]: label["queries"] for label in body["labels"]} == {
        label_id: [query] for label_id, query in revealed.items()
    }


def test_clicks_are_learned_behind_the_answer_and_counted(
    split: NovelSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_INSTANCE_LABELS", 1)
    service = Recorder(split)
    found = list(replay(split, at_once(split), service, one_shot=False, learn=True))
    paths = [path for path, _ in service.asked]
    assert paths[:3] == ["/labels", "/predict", "/instances"]
    for body in service.sent("/instances"):
        assert all(len(instance["labels"]) == 1 for instance in body["instances"])
    assert max(one.clicks for one in found) > 0
    assert found[0].clicks == 0


def test_buckets_count_recall() -> None:
    found = [
        ExpectedLabel(age=0, clicks=0, rank=0),
        ExpectedLabel(age=0, clicks=0, rank=None),
        ExpectedLabel(age=15, clicks=2, rank=4),
        ExpectedLabel(age=29, clicks=9, rank=30),
    ]
    zero, ten = buckets(found, (0, 1, 10, 30), lambda one: one.age)
    assert (zero.first, zero.asked, zero.recall["R@1"], zero.recall["R@100"]) == (0, 2, 50, 50)
    assert (ten.first, ten.asked) == (10, 2)
    assert [ten.recall[f"R@{k}"] for k in (1, 5, 30, 100)] == [0, 50, 50, 100]
