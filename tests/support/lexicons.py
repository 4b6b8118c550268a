"""Lexicons of a few texts."""

from collections.abc import Sequence

import numpy as np

from service.core.index.protocol import Tombstones
from service.core.lexical.dictionary import NO_DICTIONARY, Dictionary
from service.core.lexical.lexicon import Lexicon, WordPart
from service.core.lexical.word_index import FrozenWords, index_texts


class Words(Dictionary):
    """A dictionary of given words instead of a tokenizer's."""

    words: FrozenWords = index_texts(())


def dictionary_of(*words: str) -> Dictionary:
    """Return a dictionary of words, the most frequent first."""
    dictionary = Words()
    object.__setattr__(dictionary, "words", index_texts(words))
    return dictionary


def lexicon_of(
    texts: Sequence[str],
    *,
    dictionary: Dictionary = NO_DICTIONARY,
    masses: Sequence[float] | None = None,
) -> Lexicon:
    """Return the words of rows with these texts, none of them dead."""
    count = len(texts)
    part = WordPart(index=index_texts(texts), rows=count, dead=Tombstones(size=count))
    weighing = np.ones(count) if masses is None else np.array(masses)
    return Lexicon(parts=(part,), dictionary=dictionary, masses=weighing.__getitem__)
