"""The words of a tokenizer are those that begin words, folded, in the order of frequency."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram, WordPiece

from service.core.errors import BundleAltered
from service.core.lexical.dictionary import MOST_WORDS, NO_DICTIONARY, Dictionary, whole_words

WORD_PIECE = ["[UNK]", "!", "7", "a", "the", "##s", "trails", "caf\u00e9", "Tent", "x1", "tent"]
PIECES = [
    "<unk>",
    "s",
    "\u2581the",
    "\u2581",
    "ing",
    "\u2581Caf\u00e9",
    "\u2581trails",
    "\u2581trail",
]
BYTES = ["s", "\u0120the", "\u0120", "ing", "\u0120caf\u00c3\u00a9", "\u0120trails"]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (WORD_PIECE, ["the", "trails", "cafe", "tent"]),
        (PIECES, ["the", "cafe", "trails", "trail"]),
        (BYTES, ["the", "trails"]),
        ([], []),
    ],
)
def test_whole_words(tokens: list[str], words: list[str]) -> None:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    assert list(whole_words(dict(reversed(vocabulary.items())))) == words


def test_only_the_most_frequent_words_of_a_large_vocabulary_are_taken() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    many = [one + two + three + four for one in letters for two in letters for three in letters
            for four in "abc"]  # fmt: skip
    assert len(many) > MOST_WORDS
    words = list(whole_words({word: number for number, word in enumerate(many)}))
    assert words == many[:MOST_WORDS]


@pytest.mark.parametrize(
    "model",
    [
        WordPiece({token: number for number, token in enumerate(WORD_PIECE)}, unk_token="[UNK]"),
        Unigram([(piece, -float(number)) for number, piece in enumerate(PIECES)], unk_id=0),
        BPE({token: number for number, token in enumerate(BYTES)}, []),
    ],
)
def test_a_dictionary_reads_its_tokenizer(model: object, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    Tokenizer(model).save(str(path))
    dictionary = Dictionary(path)
    assert dictionary.rank("the") == 0
    assert dictionary.rank("trails") in (1, 2)
    assert dictionary.rank("s") is None


def test_without_a_tokenizer_no_word_is_known(tmp_path: Path) -> None:
    assert NO_DICTIONARY.rank("the") is None
    assert not len(NO_DICTIONARY.words.words)
    (tmp_path / "broken").write_text("{}")
    with pytest.raises(BundleAltered, match="broken is not a tokenizer"):
        Dictionary(tmp_path / "broken").rank("the")
