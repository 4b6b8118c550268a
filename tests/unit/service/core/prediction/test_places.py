"""The places of votes among columns, by a table and by a search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.prediction import places as module
from service.core.prediction.places import places

LABELS = st.lists(st.integers(0, 40), max_size=300)
COLUMNS = st.lists(st.integers(0, 40), unique=True, max_size=30)


@pytest.mark.parametrize("entries_a_vote", [0, 1_000_000])
@given(labels=LABELS, columns=COLUMNS)
def test_places_are_found_by_a_search_and_by_a_table(
    entries_a_vote: int, labels: list[int], columns: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TABLE_ENTRIES_A_VOTE", entries_a_vote)
        found = places(np.array(labels, np.int32), among=columns)
    assert found.tolist() == [columns.index(label) if label in columns else -1 for label in labels]
