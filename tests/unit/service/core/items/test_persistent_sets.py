"""The persistent sorted set holds what Python's `set` holds, in order."""

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.items.persistent_sets import MOST, SortedKeys

LEAST = ("", -1)
keys = st.tuples(st.text("abé\U0001f600", max_size=3), st.integers(0, 3))
changes = st.lists(st.tuples(st.booleans(), keys), max_size=60)


def made_of(numbers: list[int]) -> SortedKeys:
    made = SortedKeys()
    for number in numbers:
        made = made.insert((f"{number:05}", number))
    return made


@given(changes, keys)
@settings(max_examples=200, deadline=None)
def test_it_is_the_sorted_set(changed: list[tuple[bool, tuple[str, int]]], border: tuple) -> None:
    tree, plain = SortedKeys(), set[tuple[str, int]]()
    for added, key in changed:
        before = list(tree.above(LEAST))
        larger = tree.insert(key) if added else tree.discard(key)
        assert list(tree.above(LEAST)) == before, "an old version never changes"
        tree = larger
        plain = plain | {key} if added else plain - {key}
    assert list(tree.above(LEAST)) == sorted(plain)
    assert list(tree.above(border)) == sorted(key for key in plain if key > border)


def test_many_keys_in_any_order() -> None:
    for numbers in (range(5_000), range(4_999, -1, -1), [7 * i % 5_003 for i in range(5_000)]):
        tree = made_of(list(numbers))
        assert list(tree.above(LEAST)) == [(f"{n:05}", n) for n in sorted(numbers)]
        for number in range(0, 5_003, 2):
            tree = tree.discard((f"{number:05}", number))
        assert [n for _, n in tree.above(("02500", sys.maxsize))] == [
            n for n in sorted(numbers) if n > 2500 and n % 2
        ]
    for number in numbers:
        tree = tree.discard((f"{number:05}", number))
    assert not tree.chunks


def test_a_change_copies_few_keys() -> None:
    tree = made_of(list(range(20_000)))
    larger = tree.insert(("10000", 1))
    unchanged = {id(chunk) for chunk in tree.chunks}
    assert sum(len(chunk) for chunk in larger.chunks if id(chunk) not in unchanged) <= MOST + 1
    assert max(map(len, larger.chunks)) <= MOST
