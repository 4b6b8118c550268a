"""Tombstones: a persistent bitmap, compared with a plain set."""

import numpy as np
import pytest

from service.core.items.tombstones import PIECE_PLACES, Tombstones


def alive_places(tombstones: Tombstones, places: int) -> list[int]:
    bits = tombstones.alive(places)
    if bits is None:
        return list(range(places))
    return np.flatnonzero(np.unpackbits(bits, bitorder="little", count=places)).tolist()


def test_nothing_is_dead_at_first() -> None:
    assert Tombstones().alive(100) is None
    assert 7 not in Tombstones()


@pytest.mark.parametrize("places", [1, 9, PIECE_PLACES, PIECE_PLACES + 3, 3 * PIECE_PLACES - 1])
def test_it_is_the_complement_of_the_dead_places(places: int) -> None:
    rng, tombstones, dead = np.random.default_rng(places), Tombstones(), set[int]()
    for place in rng.integers(0, places, 200).tolist():
        before = alive_places(tombstones, places)
        larger = tombstones.with_dead(place)
        assert alive_places(tombstones, places) == before, "an old version never changes"
        tombstones = larger
        dead.add(place)
    assert tombstones.count == len(dead)
    assert alive_places(tombstones, places) == sorted(set(range(places)) - dead)
    assert all((place in tombstones) == (place in dead) for place in range(places))


def test_places_behind_the_bitmap_are_left_out() -> None:
    tombstones = Tombstones().with_dead(3).with_dead(2 * PIECE_PLACES)
    assert alive_places(tombstones, 8) == [0, 1, 2, 4, 5, 6, 7]


def test_a_place_is_alive_again() -> None:
    dead = Tombstones().with_dead(3).with_dead(PIECE_PLACES + 1)
    again = dead.without(3)
    assert (again.count, 3 in again, 3 in dead) == (1, False, True)
    assert again.without(3) is again
    assert alive_places(again, PIECE_PLACES + 2) == [*range(PIECE_PLACES + 1)]
