"""TF-IDF over words and over characters: the features of every linear peer.

Texts are short and half of their words are rare, so character n-grams within words let the forms of
a word share features. Both vocabularies come from training texts alone. Each of the two parts of a
row is scaled to length one, then the whole row.

Shapes: n texts, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as settings_class
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from service.core.config import STRICT, Count

WORD = r"(?u)\b\w+\b"  # scikit-learn's own pattern drops words of one character, such as C


@settings_class(frozen=True, kw_only=True, config=STRICT)
class FeatureSettings:
    """N-grams of one to `words` words, and of three to `characters` characters.

    Features that occur in fewer than `rows` training rows are left out. `sublinear` replaces the
    term frequency tf by 1 + ln tf.
    """

    words: Count = 2
    characters: Annotated[int, Field(ge=3)] = 5
    rows: Count = 1
    sublinear: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """Two fitted vocabularies, of words and of characters."""

    blocks: tuple[TfidfVectorizer, TfidfVectorizer]

    def of(self, texts: Sequence[str]) -> csr_matrix:
        """Features of texts, [n, F] float32; a text without a known feature has an empty row."""
        parts = [block.transform(texts) for block in self.blocks]
        features = csr_matrix(normalize(hstack(parts, format="csr")), dtype=np.float32)
        features.sort_indices()
        return features


def learn_features(texts: Sequence[str], settings: FeatureSettings) -> Features:
    """Fit both vocabularies on training texts."""

    def block(**kind: object) -> TfidfVectorizer:
        vectorizer = TfidfVectorizer(
            sublinear_tf=settings.sublinear, min_df=settings.rows, dtype=np.float32, **kind
        )
        return vectorizer.fit(texts)

    words = block(token_pattern=WORD, ngram_range=(1, settings.words))
    characters = block(analyzer="char_wb", ngram_range=(3, settings.characters))
    return Features(blocks=(words, characters))
