"""A persistent sorted set: a B-tree whose changes copy one node of each level.

`rpds` has maps by hash alone, and a page of items needs them in order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

Key = tuple[str, int]  # a text and a place: equal texts are ordered by place

MOST = 64  # keys of a leaf, children of an inner node; a node with more is cut in half


@dataclass(frozen=True)
class _Leaf:
    """Some keys, ascending."""

    keys: tuple[Key, ...]

    @property
    def first(self) -> Key:
        return self.keys[0]

    def inserted(self, key: Key) -> tuple[_Node, ...]:
        """The leaf with a key; two leaves where it became too large."""
        place = bisect_left(self.keys, key)
        if self.keys[place : place + 1] == (key,):
            return (self,)
        keys = (*self.keys[:place], key, *self.keys[place:])
        if len(keys) <= MOST:
            return (_Leaf(keys),)
        half = len(keys) // 2
        return (_Leaf(keys[:half]), _Leaf(keys[half:]))

    def without(self, key: Key) -> _Node | None:
        """The leaf without a key; None where nothing is left of it."""
        place = bisect_left(self.keys, key)
        if self.keys[place : place + 1] != (key,):
            return self
        keys = (*self.keys[:place], *self.keys[place + 1 :])
        return _Leaf(keys) if keys else None

    def above(self, key: Key) -> Iterator[Key]:
        yield from self.keys[bisect_right(self.keys, key) :]


@dataclass(frozen=True)
class _Inner:
    """Children with the smallest key of each; all keys of a child are below those of the next."""

    firsts: tuple[Key, ...]
    children: tuple[_Node, ...]

    @property
    def first(self) -> Key:
        return self.firsts[0]

    def inserted(self, key: Key) -> tuple[_Node, ...]:
        """As a leaf's."""
        place = self._place(key)
        larger = self._with(place, self.children[place].inserted(key))
        if len(larger.children) <= MOST:
            return (larger,)
        half = len(larger.children) // 2
        return (
            _Inner(larger.firsts[:half], larger.children[:half]),
            _Inner(larger.firsts[half:], larger.children[half:]),
        )

    def without(self, key: Key) -> _Node | None:
        """As a leaf's; its only child where it has no other."""
        place = self._place(key)
        below = self.children[place].without(key)
        smaller = self._with(place, () if below is None else (below,))
        if len(smaller.children) > 1:
            return smaller
        return smaller.children[0] if smaller.children else None

    def above(self, key: Key) -> Iterator[Key]:
        for child in self.children[self._place(key) :]:
            yield from child.above(key)

    def _place(self, key: Key) -> int:
        """The place of the child that has the key, if any has it."""
        return max(0, bisect_right(self.firsts, key) - 1)

    def _with(self, place: int, nodes: tuple[_Node, ...]) -> _Inner:
        """The node with `nodes` for the child at `place`."""
        firsts = [node.first for node in nodes]
        return _Inner(
            (*self.firsts[:place], *firsts, *self.firsts[place + 1 :]),
            (*self.children[:place], *nodes, *self.children[place + 1 :]),
        )


_Node = _Leaf | _Inner


@dataclass(frozen=True)
class SortedKeys:
    """Different keys in ascending order; `insert` and `discard` return a new set.

    Nodes from which keys were discarded are not joined, but an empty one is dropped.
    """

    root: _Node | None = None

    def insert(self, key: Key) -> SortedKeys:
        """Return the set with `key`."""
        if self.root is None:
            return SortedKeys(_Leaf((key,)))
        nodes = self.root.inserted(key)
        if len(nodes) == 1:
            return SortedKeys(nodes[0])
        return SortedKeys(_Inner(tuple(node.first for node in nodes), nodes))

    def discard(self, key: Key) -> SortedKeys:
        """Return the set without `key`."""
        return self if self.root is None else SortedKeys(self.root.without(key))

    def above(self, key: Key) -> Iterator[Key]:
        """Yield the keys that are greater than `key`, ascending."""
        return iter(()) if self.root is None else self.root.above(key)
