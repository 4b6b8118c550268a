"""A text's identity in the service and in data sets: what it folds, and its greatest length."""

import random
import sys
import unicodedata
from pathlib import Path
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.files import text_store
from service.core.files.text_store import TextStore
from service.core.text_identity import (
    MOST_CHARACTERS,
    MOST_ID_CHARACTERS,
    IdentityLookup,
    free_id,
    identity,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Password  Manager", "password manager"),
        ("Straße", "strasse"),
        ("\ufb01re", "fire"),
        ("\u2460", "1"),
        ("I\u0307", "i\u0307"),
        ("a\u00a0b", "a b"),
        ("\uff4e\uff49\uff4b\uff45", "nike"),
        ("nike\u200b", "nike"),
        ("\ufeffnike\u00ad", "nike"),
        ("cafe\u0301", "caf\u00e9"),
        ("CAF\u00c9", "caf\u00e9"),
        ("\u200b", "\u200b"),  # kept, because nothing else is left
        ("\U0001f469\u200d\U0001f4bb", "\U0001f469\u200d\U0001f4bb"),  # the joiner has a meaning
        (" \t ", ""),
    ],
)
def test_the_identity_of_a_text(text: str, expected: str) -> None:
    assert identity(text) == expected


@given(text=st.text(max_size=40))
def test_an_identity_is_its_own_and_that_of_every_normal_form(text: str) -> None:
    made = identity(text)
    assert identity(made) == made
    assert identity(f"  {text}\t") == made
    for form in ("NFC", "NFD"):
        assert identity(unicodedata.normalize(form, text)) == made


def test_the_identity_of_every_character_is_its_own_and_every_mark_is_counted() -> None:
    """This includes marks that only normalization creates, and marks of newer Unicode versions."""
    for character in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.category(character) in ("Cn", "Co", "Cs"):  # unassigned, private, surrogate
            continue
        made = identity(character)
        assert made == identity(made) and (made or not character.strip()), hex(ord(character))
        normal = (unicodedata.normalize(form, character)[0] for form in ("NFKC", "NFKD"))
        if any(map(unicodedata.combining, normal)):
            assert "\u034f" in identity("a" + character * 31), hex(ord(character))


@pytest.mark.parametrize("text", ["\ufdfa" * 2048, "…" * 2040, "x" * 2048, "a b " * 500])
def test_a_long_identity_ends_with_a_hash(text: str) -> None:
    made = identity(text)
    assert len(made) <= MOST_CHARACTERS
    assert made[:100] == " ".join(unicodedata.normalize("NFKC", text).split())[:100]
    assert made == identity(text) != identity(text + "x")
    assert identity(made) == made


def test_an_id_that_is_taken_gets_a_number() -> None:
    taken = {"ab", "ab~2"}
    assert free_id("abc", taken=taken.__contains__) == "abc"
    assert free_id("ab", taken=taken.__contains__) == "ab~3"
    longest = identity("\ufdfa" * 2048)
    many = {longest, *(f"{longest}~{number}" for number in range(10_000))}
    assert len(free_id(longest, taken=many.__contains__)) <= MOST_ID_CHARACTERS


def test_marks_cost_no_more_than_their_number() -> None:
    """`unicodedata` sorts marks in quadratic time: 2,048 marks took 8 ms, 65,536 took nine s."""
    marks = [chr(code) for code in range(0x10000) if unicodedata.combining(chr(code))]
    drawn = random.Random(0)
    for run in (
        "\u0301" * 32_768 + "\u0316" * 32_768,
        "\u0344\u0316" * 32_768,
        "\u0f73" * 65_536,
        "\uff9e\u0334" * 32_768,
        "".join(drawn.choice(marks) for _ in range(65_536)),
    ):
        start = thread_time()
        identity("a" + run)
        assert thread_time() - start < 1
    few = "a" + "\u0301\u0316" * 15
    assert identity(few) == unicodedata.normalize("NFKC", few)


def test_texts_are_found_by_identity_in_their_order(tmp_path: Path) -> None:
    text_store.write(tmp_path / "texts", ["AB", "cd", "ab ", "\uff43\uff44", "", "e"])
    lookup = IdentityLookup(TextStore(tmp_path / "texts"))
    for text_identity, places in {"ab": [0, 2], "cd": [1, 3], "e": [5], "f": []}.items():
        assert list(lookup.places(text_identity)) == places
    assert list(IdentityLookup([]).places("a")) == []
