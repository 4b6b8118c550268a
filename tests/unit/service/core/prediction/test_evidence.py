"""The places of votes among columns, by a table and by a search, and the first votes of each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.prediction import evidence
from service.core.prediction.evidence import EVIDENCE_ROWS, _first_votes, _places

LABELS = st.lists(st.integers(0, 40), max_size=300)
COLUMNS = st.lists(st.integers(0, 40), unique=True, max_size=30)


@pytest.mark.parametrize("entries_a_vote", [0, 1_000_000])
@given(labels=LABELS, columns=COLUMNS)
def test_places_are_found_by_a_search_and_by_a_table(
    entries_a_vote: int, labels: list[int], columns: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "TABLE_ENTRIES_A_VOTE", entries_a_vote)
        places = _places(np.array(labels, np.int32), among=columns)
    assert places.tolist() == [columns.index(label) if label in columns else -1 for label in labels]


@given(labels=LABELS, columns=COLUMNS)
def test_the_first_votes_of_each_column_keep_their_order(
    labels: list[int], columns: list[int]
) -> None:
    votes, counts = _first_votes(np.array(labels, np.int32), columns=columns)
    expected = [
        [place for place, label in enumerate(labels) if label == column][:EVIDENCE_ROWS]
        for column in columns
    ]
    assert counts == [len(places) for places in expected]
    assert votes.tolist() == [place for places in expected for place in places]
