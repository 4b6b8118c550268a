"""The real words that a bundle brings along: the whole words of its encoder's tokenizer.

A tokenizer's vocabulary is in the order of frequency in the texts that it was made from. Its words
are spelled correctly, even if no row has them.

| tokenizer            | its word `trails` | what is left out                              |
|----------------------|-------------------|-----------------------------------------------|
| WordPiece            | `trails`          | `##s`: pieces within a word                   |
| SentencePiece        | `\u2581trails`    | `s`: pieces within a word                     |
| BPE of bytes         | `\u0120trails`    | `s`, and words beyond ASCII, written as bytes |

Pieces that only begin words are taken for words, too; nothing in the file tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from service.core.errors import BundleAltered
from service.core.lexical.word_index import FrozenWords, index_texts
from service.core.lexical.words import chunks_of

LEAST_CHARACTERS = 2  # of a word; single letters are pieces
MOST_WORDS = 50_000  # the most frequent; multilingual tokenizers have more
_WITHIN, _METASPACE, _BYTE_SPACE = "##", "\u2581", "\u0120"


@dataclass(frozen=True, eq=False)
class Dictionary:
    """The words of the tokenizer at `path`, which is read when the first word is looked up.

    Without a path, there are none.
    """

    path: Path | None = None

    @cached_property
    def words(self) -> FrozenWords:
        """The words; each is in one row, whose place is its rank by frequency.

        Raises `BundleAltered` if the file is not a tokenizer.
        """
        if self.path is None:
            return index_texts(())
        try:
            vocabulary = Tokenizer.from_file(str(self.path)).get_vocab(with_added_tokens=False)
        except Exception as error:  # Rust raises bare Exception
            raise BundleAltered(f"{self.path} is not a tokenizer: {error}") from error
        return index_texts(list(whole_words(vocabulary)))

    def prepare(self) -> None:
        """Read the words now, so that the first misspelled query does not wait for them."""
        len(self.words.words)

    def rank(self, word: str) -> int | None:
        """Return the number of words that are more frequent; None for a word that is not here."""
        number = self.words.find(word)
        return None if number is None else int(self.words.places(number)[0])


NO_DICTIONARY = Dictionary()


def whole_words(vocabulary: Mapping[str, int]) -> Iterator[str]:
    """Yield the distinct folded words of a vocabulary, token to id, the most frequent first."""
    marker = next((mark for mark in (_METASPACE, _BYTE_SPACE) if _marks(vocabulary, mark)), "")
    seen: set[str] = set()
    for token in sorted(vocabulary, key=vocabulary.__getitem__):
        if len(seen) == MOST_WORDS:
            return
        if not token.startswith(marker) or (not marker and token.startswith(_WITHIN)):
            continue
        if marker == _BYTE_SPACE and not token[1:].isascii():
            continue
        word = _word(token.removeprefix(marker))
        if word is not None and word not in seen:
            seen.add(word)
            yield word


def _marks(vocabulary: Mapping[str, int], mark: str) -> bool:
    """Return whether a vocabulary marks the beginning of words with a character."""
    return any(token.startswith(mark) and len(token) > 1 for token in vocabulary)


def _word(token: str) -> str | None:
    """Return a token as one folded word; None for punctuation, numbers, and compounds."""
    if len(token) < LEAST_CHARACTERS or not token.isalpha():
        return None
    chunks = list(chunks_of(token))
    return chunks[0].whole if len(chunks) == 1 and not chunks[0].pieces else None
