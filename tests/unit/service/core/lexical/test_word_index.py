"""Indexes of words: frozen, live and gathered ones agree with the texts."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.bundle import word_files
from service.core.errors import BundleAltered
from service.core.lexical.word_index import (
    FrozenWords,
    LiveWords,
    WordIndex,
    bigrams_of,
    gathered,
    index_texts,
)
from service.core.lexical.words import words_of

WORDS = ("tent", "lamp", "XK-44", "t-shirt", "Café", "a1", "stove", "hat", "lamps", "日本", "🏕️")
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join), max_size=30)


def live(*pieces: list[str]) -> LiveWords:
    words, start = LiveWords(), 0
    for piece in pieces:
        words.write(start, piece)
        start += len(piece)
    return words


def assert_same(one: FrozenWords, other: FrozenWords) -> None:
    assert list(one.words) == list(other.words)
    for name in ("indptr", "postings", "bigrams", "bigram_indptr", "bigram_words"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@given(texts)
def test_an_index_finds_the_rows_of_each_word(texts: list[str]) -> None:
    indexes: list[WordIndex] = [index_texts(texts), live(texts)]
    for index in indexes:
        for word in {*map(str.lower, WORDS), "xk44", "cafe", "shirt"}:
            number = index.find(word)
            rows = [] if number is None else index.places(number).tolist()
            assert rows == [row for row, text in enumerate(texts) if word in words_of(text)]
            assert number is None or index.word(number) == word


@given(texts, st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=3).map(" ".join))
def test_an_index_finds_the_rows_with_all_words_of_a_text(texts: list[str], wanted: str) -> None:
    found, words = index_texts(texts).places_of_all(wanted), set(words_of(wanted))
    expected = [row for row, text in enumerate(texts) if words.issubset(words_of(text))]
    assert found is None if not words else found.tolist() == expected


@given(texts, texts, st.randoms())
def test_gathered_rows_have_the_index_of_their_texts(
    first: list[str], second: list[str], random: np.random.Generator
) -> None:
    rows = [np.array([row for row in range(len(some)) if random.random() < 0.6], np.int64)
            for some in (first, second)]  # fmt: skip
    kept = [some[row] for some, places in zip((first, second), rows, strict=True) for row in places]
    gathering = gathered([(live(first), rows[0]), (index_texts(second), rows[1])])
    assert_same(gathering, index_texts(kept))


@given(texts, texts)
def test_rows_of_a_dropped_draft_are_written_over(first: list[str], second: list[str]) -> None:
    words = live(first, ["dropped tent", "dropped"])
    words.write(len(first), second)
    everything = np.arange(len(first) + len(second))
    assert_same(gathered([(words, everything)]), index_texts([*first, *second]))


@pytest.mark.parametrize("make", [index_texts, live])
def test_words_are_found_by_bigrams(make: type[LiveWords]) -> None:
    index: WordIndex = make(["tents tent", "tint rent", "t4nt 12 to", "tentmaker"])
    shared = index.sharing(bigrams_of("tent"), 2)
    assert {index.word(number) for number in shared.tolist()} == {"tent", "tents", "tint", "rent"}
    assert not len(index.sharing(bigrams_of("qqqq"), 9))
    assert not len(make([]).sharing(bigrams_of("tent"), 9))


# In a bundle ------------------------------------------------------------------------------


def test_an_index_is_read_as_it_was_written(tmp_path: Path) -> None:
    texts = ["tents tent", "Café XK-44", "", "日本"]
    word_files.write(texts, tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")} == {
        *word_files.FILES
    }
    words = word_files.read(tmp_path, rows=4, verify=True)
    word_files.verify_order(words, tmp_path)
    assert_same(words, index_texts(texts))


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("indptr.npy", np.zeros(3, np.int64), "has 2 numbers, not 3"),
        ("rows.npy", np.full(2, 2, np.int32), "must be at least 0 and below 2"),
        ("bigram_words.npy", np.full(10, 9, np.int32), "must be at least 0 and below 2"),
        ("bigrams.npy", np.zeros(9, np.int64), "is not ascending"),
    ],
)
def test_an_altered_index_is_refused(
    tmp_path: Path, name: str, numbers: np.ndarray, message: str
) -> None:
    word_files.write(["tent", "lamp"], tmp_path)
    path = tmp_path / "words" / name
    before = np.load(path)
    np.save(path, np.resize(numbers, before.shape) if name != "indptr.npy" else before[:-1])
    with pytest.raises(BundleAltered, match=message):
        word_files.read(tmp_path, rows=2, verify=True)


def test_words_out_of_order_are_found(tmp_path: Path) -> None:
    word_files.write(["lamp", "tent"], tmp_path)
    (tmp_path / "words/words.bin").write_bytes(b"tentlamp")
    words = word_files.read(tmp_path, rows=2, verify=True)
    with pytest.raises(BundleAltered, match="in order"):
        word_files.verify_order(words, tmp_path)
