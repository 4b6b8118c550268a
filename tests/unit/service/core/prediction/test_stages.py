"""Stages ask backwards for labels, and change a ranking forwards."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from service.core.memory.label_table import NO_BOOSTS
from service.core.prediction.confidence import ConfidentEnough
from service.core.prediction.diversity import MOST_DIVERSE, Diverse
from service.core.prediction.match_types import MOST_TYPED, OfTypes
from service.core.prediction.pins import Pinned
from service.core.prediction.ranking import (
    Query,
    Ranking,
    Stage,
    Stages,
    Votes,
    applied,
    ranked,
    wanted,
)
from service.core.prediction.reranking.reranker import Reranked

QUERY = cast(Query, None)  # the stages of these tests do not read it


def ranking_of(count: int) -> Ranking:
    scores = [1.0 - place / 1_000 for place in range(count)]
    rows, numbers = np.zeros(0, np.int64), np.zeros(0)
    return Ranking(
        columns=range(count),
        scores=scores,
        rows=rows,
        similarities=numbers.astype(np.float32),
        weights=numbers,
        places=range(count),
        best_score=1.0,
        confidences=scores,
    )


@dataclass
class EvenColumns:
    """A toy capability: keeps the labels at even columns."""

    got: int = 0

    def wants(self, count: int) -> int:
        return 2 * count

    def apply(self, ranking: Ranking, query: Query, count: int) -> Ranking:
        self.got = len(ranking.columns)
        even = [place for place, column in enumerate(ranking.columns) if column % 2 == 0]
        return ranking.only(even).first(count)


class CountingRanker:
    """Ranks as many labels as it is asked for."""

    def rank(self, _view: Any, *, top_k: int, **_: Any) -> Ranking:
        return ranking_of(top_k)


@pytest.mark.parametrize(
    ("stages", "counts"),
    [
        ([], [10]),
        ([ConfidentEnough(0.5)], [10, 10]),
        ([EvenColumns(), Diverse(0.5)], [2 * MOST_DIVERSE, MOST_DIVERSE, 10]),
        ([OfTypes(["exact"]), Reranked(cast(Any, None), 50)], [MOST_TYPED, 50, 10]),
        ([Pinned({0: 3, 4: 5}, others=[Diverse(0.5)], boosts=NO_BOOSTS)], [MOST_DIVERSE + 2, 10]),
    ],
)
def test_each_stage_gets_what_it_wants(stages: list[Stage], counts: list[int]) -> None:
    assert wanted(stages, 10) == counts


def test_a_ranking_goes_through_all_stages() -> None:
    toy = EvenColumns()
    query = cast(Query, type("Query", (), dict.fromkeys(("view", "rows", "similarities"))))
    votes = Votes(cast(Any, CountingRanker()), tau=0.1, memorization=0.5)
    found = ranked(votes, [toy, ConfidentEnough(0.9905)], query, 10)
    assert toy.got == 20
    assert list(found.columns) == [0, 2, 4, 6, 8]


def test_pinned_labels_stand_in_their_places_and_are_never_left_out() -> None:
    stages = Stages([], [ConfidentEnough(0.9975), EvenColumns()])
    last = Pinned({1: 9, 2: 1}, others=stages.choosing, boosts=NO_BOOSTS)
    found = applied([last], ranking_of(12), QUERY, 4)
    assert list(found.columns) == [0, 9, 1, 2]
    assert list(applied([last], ranking_of(12), QUERY, 2).columns) == [0, 9]


def test_stages_of_one_kind_are_found() -> None:
    types = OfTypes(["exact"])
    assert Stages([types], [Diverse(0.5)]).of(OfTypes) == [types]
    assert Stages([], [Diverse(0.5)]).of(OfTypes) == []
