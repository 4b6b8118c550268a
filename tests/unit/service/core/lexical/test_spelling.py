"""Queries are read as they were meant, by the words of alive rows."""

import numpy as np
import pytest
from rapidfuzz.distance import OSA

from service.core.index.protocol import Tombstones
from service.core.lexical.lexicon import Alike, Lexicon, WordPart
from service.core.lexical.spelling import (
    LONGEST,
    MOST_LOOKED_UP,
    MOST_READINGS,
    MOST_WORDS,
    readings,
)
from service.core.lexical.word_index import LiveWords, bigrams_of, index_texts
from service.core.types import Correction

BUNDLE = (
    *("happiness", "pure happiness", "bookmark", "gold ring", "ring", "running shoes", "kitchen"),
    *("car", "pet", "carpet", "car pet sitting", "café au lait", "xk-4411 drill", "tent", "tint"),
    *("wifi", "chicken", "日本語", "a", "on"),
)
LIVE = ("kitten", "tents", "hoverboard")


@pytest.fixture
def lexicon() -> Lexicon:
    live = LiveWords()
    live.write(0, [*LIVE, "unpublished"])
    return Lexicon(
        parts=(
            WordPart(
                index=index_texts(BUNDLE), rows=len(BUNDLE), dead=Tombstones(size=len(BUNDLE))
            ),
            WordPart(index=live, rows=len(LIVE), dead=Tombstones(size=10).with_dead([2])),
        )
    )


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("hapiness", "happiness"),  # one edit
        ("happyness pure", "happiness pure"),
        ("hapines", "happiness"),  # two edits from seven characters on
        ("hpapiness", "happiness"),  # a transposition is one edit
        ("kiten", "kitten"),  # a live word
        ("book mark", "bookmark"),
        ("wi fi", "wifi"),
        ("goldring", "gold ring"),
        ("runningshoes", "running shoes"),
        ("The  Hapiness!", "The  happiness!"),  # the rest of the query stays
        ("CAFFÉ", "cafe"),
        ("hapiness hapiness", "happiness happiness"),
    ],
)
def test_a_misspelled_query(lexicon: Lexicon, typed: str, read: str) -> None:
    first = readings(lexicon, typed)[0]
    assert (first.query, first.text) == (typed, read)
    assert first.corrections


@pytest.mark.parametrize(
    "query",
    [
        "pure happiness",
        "car pet",  # a row has both words, so they are not one
        "XK-4412",  # a code
        "xk4412b",
        "12345",
        "tnt",  # three characters
        "kitche12",
        "zzzzzz",  # near to nothing
        "hoverbord",  # near to a dead row's word
        "unpublishd",  # near to a word that the view does not count
        "日本話",
        "",
        "!?",
    ],
)
def test_a_query_that_is_left_alone(lexicon: Lexicon, query: str) -> None:
    [reading] = readings(lexicon, query)
    assert (reading.text, reading.corrections) == (query, ())


def test_several_readings_are_in_the_order_of_distance_and_rows(lexicon: Lexicon) -> None:
    assert [one.text for one in readings(lexicon, "tentt")] == ["tent", "tents"]
    assert [one.text for one in readings(lexicon, "tunt ring")] == ["tent ring", "tint ring"]
    of_many = index_texts([f"ten{letter}s" for letter in "abcdefgh"])
    lexicon = Lexicon(parts=(WordPart(index=of_many, rows=8, dead=Tombstones(size=8)),))
    assert len(readings(lexicon, "tenxs")) == MOST_READINGS


def test_all_readings_name_the_known_words_that_were_typed(lexicon: Lexicon) -> None:
    for reading in readings(lexicon, "Pure tunt ring XK-4411"):
        assert reading.known == {"pure", "ring"}  # a code's words are not looked up
    assert readings(lexicon, "unpublished")[0].known == frozenset()


def test_corrections_say_what_was_typed_and_how_many_rows_have_it(lexicon: Lexicon) -> None:
    [reading] = readings(lexicon, "pur Hapiness book mark")
    assert reading.corrections == (
        Correction(typed="hapiness", read="happiness", rows=2),
        Correction(typed="book mark", read="bookmark", rows=1),
    )


def test_a_long_query_is_corrected_at_its_beginning_only(lexicon: Lexicon) -> None:
    words = ["tent"] * MOST_WORDS
    assert readings(lexicon, " ".join([*words, "hapiness"]))[0].corrections == ()
    many = readings(lexicon, "hapiness " * (MOST_LOOKED_UP + 2))[0]
    assert len(many.corrections) == MOST_LOOKED_UP
    assert many.text.split()[MOST_LOOKED_UP:] == ["hapiness"] * 2
    assert readings(lexicon, "zzzzzz " * MOST_LOOKED_UP + "hapiness")[0].corrections == ()
    assert readings(lexicon, "happiness" * 3)[0].corrections == ()
    assert LONGEST < len("happiness" * 4)


def test_a_lexicon_counts_alive_rows_of_all_parts(lexicon: Lexicon) -> None:
    assert lexicon.frequency("happiness") == 2
    assert lexicon.frequency("car") == 2
    assert lexicon.together("car", "pet") == 1
    assert lexicon.frequency("hoverboard") == lexicon.frequency("unpublished") == 0
    assert not lexicon.knows("hoverboard")
    assert lexicon.alike("tentt", 1) == [Alike(1, -1, "tent"), Alike(1, -1, "tents")]
    assert lexicon.alike("kitchin", 2)[0].word == "kitchen"
    assert lexicon.alike("unpublishe", 1) == []


def test_alike_words_are_those_within_the_distance() -> None:
    rng = np.random.default_rng(0)
    words = sorted({"".join(rng.choice(list("abc"), rng.integers(3, 9))) for _ in range(300)})
    index = index_texts(words)
    lexicon = Lexicon(
        parts=(WordPart(index=index, rows=len(words), dead=Tombstones(size=len(words))),)
    )
    for typed in words[::10]:
        some = [word for word in words if set(bigrams_of(typed)) & set(bigrams_of(word))]
        for distance in (1, 2):
            found = {one.word for one in lexicon.alike(typed, distance)}
            assert found == {word for word in some if OSA.distance(typed, word) <= distance}
