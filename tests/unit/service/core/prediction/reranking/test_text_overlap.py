"""Overlaps of texts equal hand-computed ones; compiled code and Python give the same bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.prediction.reranking.text_overlap import (
    TextComparison,
    TextOverlap,
    WordRarity,
    normalized,
    words_of,
)
from tests.support.equations import compared_by_definition, trigrams_of

QUERY = "ab-data:  the Game's data"
LABELS = ["Ab: the game", "xy: the sound", ""]
RARITY = WordRarity.among(LABELS)

characters = st.sampled_from("aAb_-'.( )1éÉßİ日本😀\t\u00a0\u2028\x00")
texts = st.one_of(st.text(characters, max_size=40), st.text(max_size=20).filter(str.isprintable))


@pytest.fixture(scope="module")
def overlap() -> TextOverlap:
    return TextComparison()(QUERY, LABELS, RARITY)


def test_trigrams_of_words_with_a_space_at_both_ends(overlap: TextOverlap) -> None:
    def grams(text: str) -> set[str]:
        return {f" {w} "[i : i + 3] for w in text.lower().split() for i in range(len(w))}

    ours, theirs = grams(QUERY), grams(LABELS[0])
    assert overlap.common_trigrams[0] == len(ours & theirs)
    assert overlap.query_trigrams.tolist() == [len(ours)] * 3
    assert overlap.label_trigrams.tolist() == [len(theirs), len(grams(LABELS[1])), 0]
    assert list(trigrams_of("a bc")) == [" a ", " bc", "bc "]


def test_rare_words_weigh_more(overlap: TextOverlap) -> None:
    the, rare, unknown = np.log(4 / 3), np.log(4 / 2), np.log(4)
    assert overlap.common_words == pytest.approx([rare + the + rare, the, 0.0])
    assert overlap.label_words == pytest.approx([rare + the + rare, rare + the + rare, 0.0])
    # ab, data (once), the, game, s
    assert overlap.query_words == pytest.approx([rare + unknown + the + rare + unknown] * 3)


def test_first_words(overlap: TextOverlap) -> None:
    assert overlap.common_beginning.tolist() == [2.0, 0.0, 0.0]
    assert overlap.query_first_word.tolist() == [7.0] * 3
    assert overlap.label_first_word.tolist() == [2.0, 2.0, 0.0]
    for compare in (compared_by_definition, TextComparison()):
        found = compare("(abc) x", ["abd", "ab: c", "", "(x) y", "...", "abcd"], RARITY)
        assert found.label_first_word.tolist() == [3.0, 2.0, 0.0, 1.0, 0.0, 4.0]
        assert found.common_beginning.tolist() == [2.0, 2.0, 0.0, 0.0, 0.0, 3.0]


def test_words_are_runs_of_letters_and_digits_without_case() -> None:
    def same(one: str, other: str) -> bool:
        return list(words_of(one)) == list(words_of(other))

    assert normalized("  A\tb \u2028 C ") == "a b c" and normalized("") == ""
    assert same("lib_a1-b.c", "lib_a1 b c") and not same("a", "b")
    assert list(words_of(" -.( ")) == []
    assert len(list(words_of("naïve 日本語"))) == 2


def test_no_labels_and_a_query_without_words() -> None:
    for compare in (compared_by_definition, TextComparison()):
        assert [len(values) for values in compare("a", [], RARITY)] == [0] * 9
        nothing = compare("!", ["?"], WordRarity.among([]))
        assert nothing.common_words.tolist() == [0.0] and nothing.query_words.tolist() == [0.0]


@given(query=texts, labels=st.lists(texts, max_size=6), known=st.lists(texts, max_size=6))
def test_compiled_code_gives_the_bits_of_python(
    query: str, labels: list[str], known: list[str]
) -> None:
    rarity = WordRarity.among(known)
    expected = compared_by_definition(query, labels, rarity)
    found = TextComparison()(query, labels, rarity)
    for name, values in expected._asdict().items():
        assert getattr(found, name).tolist() == values.tolist(), name


def test_long_texts() -> None:
    labels = ["word " * 1_000, "x" * 5_000, " ".join(f"w{n}" for n in range(2_000))]
    query = " ".join(f"w{n}" for n in range(0, 2_000, 3))
    expected, found = (
        compare(query, labels, RARITY) for compare in (compared_by_definition, TextComparison())
    )
    for one, other in zip(expected, found, strict=True):
        assert one.tolist() == other.tolist()
