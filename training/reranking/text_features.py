"""How the texts of a query and of a candidate overlap.

Shapes: n queries, m candidates, L labels, T different terms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer

from service.core.types import Doubles
from training.reranking.candidates import Candidates
from training.reranking.terms import Terms, inverse_frequency

_GRAM = 3  # characters
_WORD = r"(?u)\w+"


def text_features(
    queries: Sequence[str], labels: Sequence[str], candidates: Candidates
) -> dict[str, Doubles]:
    """Features by name, [m] each, from the texts of all queries [n] and labels [L]."""
    common, of_query, of_label = grams(queries, labels).overlap(candidates)
    features = {
        "trigrams, Jaccard": common / np.maximum(of_query + of_label - common, 1.0),
        "trigrams of the label in the query": common / np.maximum(of_label, 1.0),
        "trigrams of the query in the label": common / np.maximum(of_query, 1.0),
        "trigrams of the label": of_label,
        "trigrams of the query": of_query,
    }
    common, of_query, of_label = words(queries, labels).overlap(candidates)
    features |= {
        "words, inverse frequency": common,
        "words of the label in the query": common / np.maximum(of_label, 1e-9),
        "words of the query in the label": common / np.maximum(of_query, 1e-9),
    }
    return features | first_word_features(queries, labels, candidates)


def grams(queries: Sequence[str], labels: Sequence[str]) -> Terms:
    """Trigrams of characters within words, each of weight 1."""
    vectorizer = CountVectorizer(analyzer="char_wb", ngram_range=(_GRAM, _GRAM), binary=True)
    of_labels, of_queries = _terms(vectorizer, queries, labels)
    return Terms(queries=of_queries, labels=of_labels, weights=np.ones(of_labels.shape[1]))


def words(queries: Sequence[str], labels: Sequence[str]) -> Terms:
    """Words, each with the logarithm of its inverse frequency among labels as weight."""
    of_labels, of_queries = _terms(
        CountVectorizer(token_pattern=_WORD, binary=True), queries, labels
    )
    weights = inverse_frequency(of_labels)
    return Terms(queries=of_queries, labels=of_labels, weights=weights)


def first_word_features(
    queries: Sequence[str], labels: Sequence[str], candidates: Candidates
) -> dict[str, Doubles]:
    """How much of both first words is a common beginning: names are often made from names."""
    ours, theirs = ([first_word(text) for text in texts] for texts in (queries, labels))
    pairs = zip(candidates.queries.tolist(), candidates.labels.tolist(), strict=True)
    lengths = np.array(
        [
            (common_beginning(ours[query], theirs[label]), len(ours[query]), len(theirs[label]))
            for query, label in pairs
        ],
        np.float64,
    ).reshape(-1, 3)
    common, of_query, of_label = lengths.T
    return {
        "common beginning": common,
        "common beginning, share of the query's first word": common / np.maximum(of_query, 1.0),
        "common beginning, share of the label's first word": common / np.maximum(of_label, 1.0),
    }


def common_beginning(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    return next((place for place, (left, right) in pairs if left != right), shorter)


def first_word(text: str) -> str:
    """Up to the first space, in lower case, without punctuation at its ends; "" for none."""
    return next(iter(text.lower().split()), "").strip(".,:;()[]\"'")


def _terms(
    vectorizer: CountVectorizer, queries: Sequence[str], labels: Sequence[str]
) -> tuple[csr_matrix, csr_matrix]:
    """The terms of labels [L, T] and of queries [n, T]; terms that no label has count, too."""
    texts = [*labels, *queries]
    try:
        both = csr_matrix(vectorizer.fit_transform(texts), dtype=np.float64)
    except ValueError:  # no text has a term, such as a word where all are punctuation
        both = csr_matrix((len(texts), 1))
    return both[: len(labels)], both[len(labels) :]
