"""The first votes of each column."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.core.prediction.evidence import EVIDENCE_ROWS, _first_votes

LABELS = st.lists(st.integers(0, 40), max_size=300)
COLUMNS = st.lists(st.integers(0, 40), unique=True, max_size=30)


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
