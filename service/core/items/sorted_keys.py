"""A persistent sorted set: a B-tree whose changes copy one node of each level.

`rpds` has maps by hash alone, and a page of items needs them in order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", str, tuple[str, int])

MOST = 64  # keys of a leaf, children of an inner node; a node with more is cut in half


@dataclass(frozen=True, slots=True)
class _Inner(Generic[Key]):
    """Children with the smallest key of each; all keys of a child are below those of the next."""

    firsts: tuple[Key, ...]
    children: tuple[_Inner[Key] | tuple[Key, ...], ...]  # a leaf is a tuple of keys


@dataclass(frozen=True, slots=True)
class SortedKeys(Generic[Key]):
    """Different keys in ascending order; `insert` and `discard` return a new set.

    Nodes from which keys were discarded are not joined, but an empty one is dropped.
    """

    root: _Inner[Key] | tuple[Key, ...] = ()

    def insert(self, key: Key) -> SortedKeys[Key]:
        """Return the set with `key`."""
        nodes = _inserted(self.root, key)
        return SortedKeys(nodes[0] if len(nodes) == 1 else _inner(nodes))

    def discard(self, key: Key) -> SortedKeys[Key]:
        """Return the set without `key`."""
        root = _discarded(self.root, key)
        while isinstance(root, _Inner) and len(root.children) == 1:
            root = root.children[0]
        return SortedKeys(() if root is None else root)

    def above(self, key: Key) -> Iterator[Key]:
        """Yield the keys that are greater than `key`, ascending."""
        return _above(self.root, key)


def _inserted(
    node: _Inner[Key] | tuple[Key, ...], key: Key
) -> tuple[_Inner[Key] | tuple[Key, ...], ...]:
    """The node with the key; two nodes where it became too large."""
    if isinstance(node, tuple):
        place = bisect_left(node, key)
        if node[place : place + 1] == (key,):
            return (node,)
        keys = (*node[:place], key, *node[place:])
        half = len(keys) // 2
        return (keys,) if len(keys) <= MOST else (keys[:half], keys[half:])
    place = max(0, bisect_right(node.firsts, key) - 1)
    below = _inserted(node.children[place], key)
    children = (*node.children[:place], *below, *node.children[place + 1 :])
    half = len(children) // 2
    if len(children) <= MOST:
        return (_inner(children),)
    return (_inner(children[:half]), _inner(children[half:]))


def _discarded(
    node: _Inner[Key] | tuple[Key, ...], key: Key
) -> _Inner[Key] | tuple[Key, ...] | None:
    """The node without the key; None where nothing is left of it."""
    if isinstance(node, tuple):
        place = bisect_left(node, key)
        if node[place : place + 1] != (key,):
            return node
        return (*node[:place], *node[place + 1 :]) or None
    place = max(0, bisect_right(node.firsts, key) - 1)
    below = _discarded(node.children[place], key)
    kept = () if below is None else (below,)
    children = (*node.children[:place], *kept, *node.children[place + 1 :])
    return _inner(children) if children else None


def _above(node: _Inner[Key] | tuple[Key, ...], key: Key) -> Iterator[Key]:
    if isinstance(node, tuple):
        yield from node[bisect_right(node, key) :]
        return
    for child in node.children[max(0, bisect_right(node.firsts, key) - 1) :]:
        yield from _above(child, key)


def _inner(children: tuple[_Inner[Key] | tuple[Key, ...], ...]) -> _Inner[Key]:
    firsts = tuple(child.firsts[0] if isinstance(child, _Inner) else child[0] for child in children)
    return _Inner(firsts, children)
