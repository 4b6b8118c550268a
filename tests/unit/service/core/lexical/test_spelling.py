"""Queries are read as they were meant, by the words of alive rows and of a dictionary."""

import unicodedata
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rapidfuzz.distance import OSA

from service.core.index.protocol import Tombstones
from service.core.lexical.lexicon import Alike, Lexicon, WordPart
from service.core.lexical.spelling import (
    CLEARLY,
    LONGEST,
    MOST_LOOKED_UP,
    MOST_READINGS,
    MOST_WORDS,
    has_edits,
    readings,
)
from service.core.lexical.word_index import LiveWords, bigrams_of, index_texts, letters_of
from service.core.types import Correction
from tests.support.lexicons import dictionary_of, lexicon_of

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


def test_several_readings_are_in_the_order_of_their_likelihood(lexicon: Lexicon) -> None:
    near = lexicon_of(["carpets ring", "carport", "carpenter"])
    assert [one.text for one in readings(near, "carpet ring")] == ["carpets ring"]
    many = lexicon_of([f"carp{letter}nter" for letter in "aeiou"])
    assert len(readings(many, "carpynter")) == MOST_READINGS


def test_of_two_words_as_near_the_more_frequent_is_meant() -> None:
    lexicon = lexicon_of(["carrots"] * 5 + ["carrets"])
    assert [one.text for one in readings(lexicon, "carruts")] == ["carrots", "carrets"]
    lexicon = lexicon_of(["carrots", "carrets"], masses=[1.0, 5.0])
    assert [one.text for one in readings(lexicon, "carruts")] == ["carrets", "carrots"]


def test_a_customers_typo_corrects_nobody() -> None:
    texts, clicks = ["wireless headphones", "wireless headphonse"], [30.0, 1.0]
    lexicon = lexicon_of(texts, masses=clicks)
    assert [one.text for one in readings(lexicon, "headphone")] == ["headphones"]
    lexicon = lexicon_of([*[texts[0]] * 30, texts[1]])
    assert [one.text for one in readings(lexicon, "headphone")] == ["headphones"]
    typed = readings(lexicon, texts[1])
    assert [one.text for one in typed] == [texts[1]]  # a row has it: its own answer is found


WORDS = st.text("abcdeilnorst", min_size=7, max_size=12)


def edited(word: str, place: int, letter: str) -> str:
    place %= len(word)
    return word[:place] + letter + word[place + 1 :]


@given(WORDS, st.integers(0, 11), st.sampled_from("xz"), st.integers(0, 11), st.sampled_from("qv"))
def test_a_typo_of_a_clearly_more_frequent_word_is_never_read(
    word: str, one: int, by: str, other: int, with_: str
) -> None:
    typo = edited(word, one, by)
    typed = edited(typo, other, with_)
    assume(OSA.distance(word, typed) in (1, 2))
    lexicon = lexicon_of([word] * (int(CLEARLY) + 1) + [typo])
    assert {reading.text for reading in readings(lexicon, typed)} <= {word, typed}


def test_words_of_the_dictionary_are_spelled_correctly_and_stand_behind_those_of_rows() -> None:
    texts = ["hiking boots", "beautifully made"] * 50
    assert readings(lexicon_of(texts), "beautifulli")[0].text == "beautifully"
    lexicon = lexicon_of(texts, dictionary=dictionary_of("beautiful", "hiding", "boost"))
    for query in ("beautiful", "hiding", "boost"):
        assert [one.text for one in readings(lexicon, query)] == [query]
    [reading] = readings(lexicon, "beatiful")
    assert reading.corrections == (Correction(typed="beatiful", read="beautiful", rows=0),)
    assert readings(lexicon, "boots")[0].known == {"boots"}
    assert readings(lexicon, "boost")[0].known == frozenset()  # no row has it
    assert readings(lexicon, "bootts")[0].text == "boots"
    assert readings(lexicon, "beaut iful")[0].text == "beautiful"


def test_a_new_short_name_is_not_read_as_a_rare_word() -> None:
    names = ["kano", "komi", "sabha", "salta", *(f"name {place}" for place in range(200))]
    for name in ("kana", "kumi", "saha", "santa"):
        assert readings(lexicon_of(names), name)[0].text == name
    assert readings(lexicon_of([*names, "arkhangelsk"]), "arkhangelks")[0].text == "arkhangelsk"


SAMPLES = (  # a phrase of each script, and a word that differs from it in one character
    *(("\u7537\u58eb\u8fd0\u52a8\u978b", "\u5973\u58eb\u8fd0\u52a8\u978b"),),
    *(("\u5317\u4eac\u5927\u5b66", "\u5357\u4eac\u5927\u5b66"),),
    *(("\u30a2\u30a4\u30b9\u30e9\u30f3\u30c9", "\u30a2\u30a4\u30eb\u30e9\u30f3\u30c9"),),
    *(("\u3072\u3060\u308a\u3066\u3088\u3046", "\u307f\u3060\u308a\u3066\u3088\u3046"),),
    *(
        (
            "\u0e40\u0e2a\u0e37\u0e49\u0e2d\u0e22\u0e32\u0e27",
            "\u0e40\u0e2a\u0e37\u0e49\u0e2d\u0e02\u0e32\u0e27",
        ),
    ),
)


@pytest.mark.parametrize(("text", "query"), SAMPLES)
def test_one_other_character_of_a_script_without_spaces_is_another_word(
    text: str, query: str
) -> None:
    assert OSA.distance(text, query) == 1
    assert [one.text for one in readings(lexicon_of([text] * 9), query)] == [query]


UNSPACED = "CJK|HIRAGANA|KATAKANA|THAI|LAO|KHMER|MYANMAR|TAI|NEW TAI LUE|YI|TIBETAN".split("|")
ALPHABETS = "LATIN|GREEK|CYRILLIC|ARMENIAN|HEBREW|ARABIC|GEORGIAN|HANGUL|DEVANAGARI".split("|")


def letters_named(scripts: Sequence[str]) -> st.SearchStrategy[str]:
    """Return a strategy of letters whose Unicode names begin with one of the scripts."""
    letters = [  # folded
        chr(point)
        for point in range(0x80, 0x20000)
        if chr(point).isalpha()
        and unicodedata.name(chr(point), "").startswith(tuple(f"{one} " for one in scripts))
        and unicodedata.normalize("NFKC", chr(point)).lower() == chr(point)
    ]
    assert len(letters) > 500
    return st.sampled_from(letters)


WITHOUT_SPACES = letters_named(UNSPACED)


@given(st.lists(WITHOUT_SPACES, min_size=4, max_size=12), st.integers(0, 11), WITHOUT_SPACES)
def test_no_script_without_spaces_is_corrected(letters: list[str], at: int, other: str) -> None:
    text = "".join(letters)
    query = edited(text, at, other)
    [reading] = readings(lexicon_of([text] * 9), query)
    assert (reading.text, reading.corrections) == (query, ())


@given(letters_named(ALPHABETS))
def test_all_other_scripts_are(letter: str) -> None:
    assert has_edits(f"word{letter}")


def test_an_edit_of_hangul_is_one_of_its_letters() -> None:
    word = "\uc6b4\ub3d9\ud654"  # sports shoes: eight letters in three syllables
    lexicon = lexicon_of([word] * 3)
    assert len(letters_of(word)) == 8
    assert readings(lexicon, "\uc6b4\ub3d9\ud638")[0].text == word  # one vowel differs
    assert readings(lexicon, "\uc6b4\ub3d9\ubcf5")[0].text != word  # clothes: another syllable


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
    assert sorted(lexicon.alike("tentt", 1)) == [
        Alike("tent", 1, 1 / lexicon.rows),
        Alike("tents", 1, 1 / lexicon.rows),
    ]
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
