"""A text's identity in the service and in data sets: what it folds, and its greatest length."""

import random
import re
import sys
import unicodedata
from pathlib import Path
from time import thread_time

import pytest
import regex
from hypothesis import assume, given
from hypothesis import strategies as st

from service.core import text_identity as module
from service.core.files import text_store
from service.core.files.text_store import TextStore
from service.core.lexical.words import comparable, words_of
from service.core.text_identity import (
    MOST_CHARACTERS,
    MOST_ID_CHARACTERS,
    IdentityLookup,
    folded,
    free_id,
    identity,
    readable,
    shown,
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
        ("\u2764\ufe0f mug", "\u2764 mug"),
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
            assert module._mark(0x20000).many.search("a" + character * 31), hex(ord(character))


@given(text=st.text("a\u0301\u0316\u0334\u0344\u0345\u0f73\uff9e\u1ea5", min_size=31, max_size=80))
def test_long_runs_of_marks_are_sorted_as_normalization_does(text: str) -> None:
    assert folded(text) == unicodedata.normalize(
        "NFKC", unicodedata.normalize("NFKC", text).casefold()
    )


def test_ignorable_characters_and_emoji_are_those_of_unicode() -> None:
    """No character between which a joiner stays is changed by folding."""
    ignorable = regex.compile(r"\p{Default_Ignorable_Code_Point}+")
    unlike = set("\n\r") | set(map(chr, range(0xD800, 0xE000)))
    every = "\n".join(chr(code) for code in range(sys.maxunicode + 1) if chr(code) not in unlike)
    assert shown(every) == ignorable.sub("", every)
    joining = re.findall(f"[{module._EMOJI}]", every)
    assert len(joining) > 1_000
    for character in joining:
        assert identity(character) == character, hex(ord(character))


def test_every_joined_emoji_and_every_flag_has_an_identity_of_its_own() -> None:
    emoji = pytest.importorskip("emoji", reason="EMOJI NOT COMPARED: emoji is not installed")
    sequences = [
        sequence
        for sequence, facts in emoji.EMOJI_DATA.items()
        if facts["status"] == emoji.STATUS["fully_qualified"]
    ]
    assert len(sequences) > 3_000
    assert len({identity(sequence) for sequence in sequences}) == len(sequences)
    assert len({tuple(words_of(sequence)) for sequence in sequences}) >= len(sequences) - 30
    for sequence in sequences:
        assert identity(sequence) == identity(sequence.replace("\ufe0f", "")), sequence


IGNORABLE = "\u00ad\u034f\u061c\u115f\u17b5\u180b\u200b\u200c\u200d\u200e\u2060\u2066\u3164"
IGNORABLE += "\ufe0f\ufeff\uffa0\U0001d173\U000e0001\U000e0061\U000e0100"


@given(
    text=st.text(max_size=20),
    added=st.lists(st.tuples(st.integers(0, 20), st.sampled_from(IGNORABLE)), max_size=5),
)
def test_texts_that_differ_in_ignorable_characters_alone_are_the_same(
    text: str, added: list[tuple[int, str]]
) -> None:
    assume(not re.search(f"[{module._EMOJI}]", text))
    with_ignorable = text
    for place, character in added:
        with_ignorable = with_ignorable[:place] + character + with_ignorable[place:]
    assert words_of(with_ignorable) == words_of(text)
    assert comparable(with_ignorable) == comparable(text)
    if shown(text).strip():
        assert identity(with_ignorable) == identity(text)


@given(st.text())
def test_readable_texts_have_something_visible_and_no_control_characters(text: str) -> None:
    wrong = regex.search(r"[\p{Cc}--\p{White_Space}]", text, regex.V1)
    invisible = not regex.search(r"[^\p{White_Space}\p{Default_Ignorable_Code_Point}]", text)
    try:
        assert readable(text) is text
    except ValueError as error:
        assert wrong or invisible
        assert ("control character" in str(error)) is bool(wrong)
    else:
        assert not (wrong or invisible)


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
