"""Words of texts in several scripts, of compounds, and of codes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.lexical.words import MOST_CHARACTERS, TypedQuery, chunks_of, words_of


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
        ("🏕️ camping", ["🏕️", "camping"]),
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
