"""Tables of token ids, and batches of texts of similar length."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.models.tokens import TokenTable, buckets, by_length, concatenate, padded


def table(*texts: list[int]) -> TokenTable:
    return TokenTable(
        ids=np.array([token for text in texts for token in text], np.int32),
        ends=np.cumsum([0, *(len(text) for text in texts)]),
    )


THREE = table([1, 2, 3], [4], [5, 6])


def test_texts_come_back_as_they_were_given() -> None:
    assert [THREE.of(text).tolist() for text in range(3)] == [[1, 2, 3], [4], [5, 6]]
    both = concatenate([THREE, table([7, 8])])
    assert len(both) == 4
    assert both.of(3).tolist() == [7, 8]


def test_padding_stands_behind_and_is_masked() -> None:
    inputs = padded(THREE, np.array([0, 1]), padding=9, device="cpu")
    assert inputs["input_ids"].tolist() == [[1, 2, 3], [4, 9, 9]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_the_shortest_text_is_first() -> None:
    assert by_length(THREE, np.array([0, 1, 2])).tolist() == [1, 2, 0]


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60).map(sorted),
    budget=st.integers(1, 400),
)
def test_buckets_hold_all_and_fit_the_budget_if_one_text_does(
    lengths: list[int], budget: int
) -> None:
    cuts = list(buckets(np.array(lengths), budget=budget))
    assert [place for cut in cuts for place in range(cut.start, cut.stop)] == list(
        range(len(lengths))
    )
    for cut in cuts:
        size = cut.stop - cut.start
        assert size >= 1
        assert size == 1 or size * lengths[cut.stop - 1] <= budget
