"""The cost of typing one word for another: each kind of edit, and the least of all alignments."""

import re
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import OSA

from service.core.lexical import noisy_channel
from service.core.lexical.noisy_channel import error_cost

LINE = re.compile(r"\| `(\w+)` +\| `(\w+)` +\| .* \| (\+?[0-9.]+) +\|")
ROWS = LINE.findall(noisy_channel.__doc__ or "")
WORDS = st.text("abes", min_size=1, max_size=6)
ADDED, MISSING = noisy_channel._ADDED, noisy_channel._MISSING


@pytest.mark.parametrize(("typed", "meant", "cost"), ROWS)
def test_the_table_of_the_docstring(typed: str, meant: str, cost: str) -> None:
    found = error_cost(typed=typed, meant=meant)
    if cost.startswith("+"):  # more than the same letter costs within a word
        found -= error_cost(typed=f"b{typed}b", meant=f"b{meant}b")
    assert found == pytest.approx(float(cost))


def test_the_table_has_all_kinds() -> None:
    assert len(ROWS) == 12


def slow_cost(typed: str, meant: str) -> float:
    """Return the least cost of all alignments of the whole words."""

    @cache
    def least(i: int, j: int) -> float:
        ways = [0.0] if i == j == 0 else []
        if i:
            ways.append(least(i - 1, j) + noisy_channel._one_more(typed, i - 1, ADDED))
        if j:
            ways.append(least(i, j - 1) + noisy_channel._one_more(meant, j - 1, MISSING))
        if i and j:
            ways.append(least(i - 1, j - 1) + noisy_channel._replaced(typed, i - 1, meant[j - 1]))
        if i > 1 and j > 1 and typed[i - 2 : i] == meant[j - 2 : j][::-1]:
            ends = noisy_channel._at_ends(typed, i - 2, i - 1)
            ways.append(least(i - 2, j - 2) + noisy_channel.SWAPPED + ends)
        return min(ways)

    return least(len(typed), len(meant))


@given(WORDS, WORDS)
def test_it_is_the_least_of_all_alignments(typed: str, meant: str) -> None:
    cost = error_cost(typed=typed, meant=meant)
    assert (cost == 0.0) == (typed == meant)
    assert cost >= noisy_channel.MISSING_DOUBLED * OSA.distance(typed, meant)
    least = slow_cost(typed, meant)
    if typed[0] != meant[0] and typed[-1] != meant[-1]:
        assert cost == pytest.approx(least)
    else:  # letters that are the same at the ends are not aligned otherwise, which may cost more
        assert cost >= least - 1e-9
