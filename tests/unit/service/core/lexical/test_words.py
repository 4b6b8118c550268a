"""Words of texts in several scripts, of compounds, and of codes."""

import re
import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.core.lexical.words import (
    MOST_CHARACTERS,
    TypedQuery,
    chunks_of,
    comparable,
    words_of,
)
from service.core.text_identity import shown


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Café BARS", ["cafe", "bars"]),
        ("cafe\u0301", ["cafe"]),
        ("men's shoes", ["mens", "shoes"]),
        ("don\u2019t", ["dont"]),
        ("T-Shirt", ["tshirt", "t", "shirt"]),
        ("XK-4411b", ["xk4411b", "xk", "4411", "b"]),
        ("xk4411b", ["xk4411b", "xk", "4411", "b"]),
        ("xk 4411 b", ["xk", "4411", "b"]),
        ("https://keymatch.example", ["https", "keymatchexample", "keymatch", "example"]),
        ("a.b.c.d.e.f.g", ["a", "b", "c", "d", "e", "f", "g"]),  # too many pieces for one word
        ("\ufb01sh \uff21\uff22", ["fish", "ab"]),
        ("Straße ёлка", ["strasse", "елка"]),
        ("खिलाड़ी हिन्दी", ["खिलाड़ी", "हिन्दी"]),  # vowel signs do not end a word
        ("日本語のテキスト、2024年", ["日本語のテキスト2024年", "日本語のテキスト", "2024", "年"]),
        ("🏕️ camping", ["🏕", "camping"]),
        ("كِتَابٌ، قلمـ؟", ["كتاب", "قلم"]),
        ("שָׁלוֹם־עולם", ["שלוםעולם", "שלום", "עולם"]),
        ("canister 1.5 l", ["canister", "1.5", "1", "5", "l"]),
        ("3/4 -5 5%", ["3/4", "3", "4", "-5", "5", "5%"]),
        ("C++ (C#)", ["c++", "c", "c#"]),
        ("tent tent", ["tent"]),
        (" -- ", []),
        ("x" * 100, ["x" * MOST_CHARACTERS]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@given(st.text())
def test_chunks_are_pieces_of_the_text_in_order(text: str) -> None:
    end = 0
    for chunk in chunks_of(text):
        assert end <= chunk.start < chunk.stop <= len(text)
        assert chunk.whole
        assert all(chunk.pieces)
        assert not any(character.isspace() for word in chunk.words for character in word)
        end = chunk.stop


@given(st.text("aB ", max_size=2 * MOST_CHARACTERS))
def test_letters_and_spaces_are_cut_like_any_text(text: str) -> None:
    words = [word for chunk in chunks_of(text) for word in chunk.words]
    assert words_of(text) == list(dict.fromkeys(words))
    assert TypedQuery(text).match(text) == ("exact" if words else "broad")
    assert TypedQuery(text).match(f"{text} B-a") == TypedQuery(f"{text}!").match(f"{text} B-a")


@given(st.text(st.characters(codec="ascii")))
def test_ascii_is_read_alike_within_any_text(text: str) -> None:
    assert words_of(f"{text} é") == list(dict.fromkeys([*words_of(text), "e"]))


SCRIPTS = "aZé5\u0665½-+#.,/'%$ \u0301\u064b\u0640\u05b0بשй한กเาน्日が👍🏽\ufe0f\u200d!،?।"


@given(st.text(SCRIPTS, max_size=12), st.text(SCRIPTS, max_size=12))
def test_exact_is_symmetric_and_implied_by_equal_texts(one: str, other: str) -> None:
    assert (TypedQuery(one).match(other) == "exact") is (TypedQuery(other).match(one) == "exact")
    assert TypedQuery(one).match(f" {one.upper().lower()} ") == TypedQuery(one).match(one)
    assert (TypedQuery(one).match(one) == "exact") is bool(comparable(one)) is bool(words_of(one))


@given(st.text(SCRIPTS, max_size=20), st.text(st.characters(categories=["Po", "Ps", "Pe", "Zs"])))
def test_punctuation_around_words_does_not_count(text: str, around: str) -> None:
    around = re.sub("[#%\u2030\u066a.,\u060c'\u066b]", "", unicodedata.normalize("NFKC", around))
    assume(not re.search("[#%\u2030\u066a]", around))
    assert comparable(f"{around} {text} {around}") == comparable(text)
    assert words_of(f"{around} {text} {around}") == words_of(text)


@given(st.integers(0, 10**6), st.characters(categories=["Po", "Sm", "Sc"]), st.integers(0, 10**6))
def test_digits_are_not_joined_over_a_symbol(one: int, symbol: str, other: int) -> None:
    assume(unicodedata.normalize("NFKC", symbol) != "\u2212")  # a minus here is read as a hyphen
    apart, together = f"size {one}{symbol}{other}", f"size {one}{other}"
    assert TypedQuery(apart).match(together) == TypedQuery(together).match(apart) == "broad"
    assert TypedQuery(apart).match(apart) == "exact"
    assert f"{one}{other}" not in words_of(apart)


@given(st.sampled_from(["tent", "C", "5", "XK-4411", "9.5", "ب"]), st.sampled_from("+#%$€±٪"))
def test_symbols_on_a_word_count(word: str, symbol: str) -> None:
    for text in (f"red {word}{symbol}", f"red {symbol}{word}"):
        assert TypedQuery(text).match(f"red {word}") == "broad"
        assert TypedQuery(f"red {word}").match(text) == "broad"
        assert TypedQuery(f"red {word} {symbol}").match(f"red {word}") == "exact"


@given(st.text(SCRIPTS, max_size=20))
def test_chunks_of_a_text_with_ignorable_characters_cover_them(text: str) -> None:
    plain = shown(text)
    assert [chunk.words for chunk in chunks_of(text)] == [c.words for c in chunks_of(plain)]
    for chunk, other in zip(chunks_of(text), chunks_of(plain), strict=True):
        assert shown(text[chunk.start : chunk.stop]) == plain[other.start : other.stop]
