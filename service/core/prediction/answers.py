"""A query's answer as JSON: the types of its fields, and how it is made of a prediction.

`POST /predict`, bulk jobs and comparisons share it. Each field is defined only here: the OpenAPI
document is derived from these types, and mypy checks the documents against them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NotRequired

import numpy as np

from service.core.types import (
    Evidence,
    Keyword,
    MatchType,
    Prediction,
    Reading,
    ScoreKind,
    TypedDict,
    doc,
)

Similarity = Annotated[float, doc("Cosine similarity, -1 to 1.")]
Novel = Annotated[bool, doc("Whether the label was posted, rather than part of the training data.")]
MetadataAnswer = Annotated[
    Mapping[str, str | float | bool | Sequence[str]], doc("As posted with the label.")
]


class EvidenceAnswer(TypedDict):
    """One row of the memory that voted for a keyword."""

    kind: Annotated[
        str,
        doc(
            "`instance`: a training query or a posted click; `label`: the label's text; `alias`:"
            " one of its aliases."
        ),
    ]
    text: Annotated[str, doc("The text of the row.")]
    similarity: Similarity  # of the row and the query
    words: NotRequired[
        Annotated[float, doc("What words that both have added to the similarity, if any did.")]
    ]
    hub: NotRequired[
        Annotated[
            float,
            doc(
                "What is subtracted because the row is near to many queries: less than 0 if it is"
                " near to few. Only in bundles that count it."
            ),
        ]
    ]
    weight: Annotated[
        float,
        doc(
            "The row's part of the votes, less than 0 for a negative pair; the weights of all rows"
            " sum to them."
        ),
    ]


class KeywordAnswer(TypedDict):
    """A predicted label. `metadata` and `evidence` are present only with `explain`."""

    id: str
    text: str
    score: Annotated[
        float,
        doc(
            "What `score_kind` of the result says; 0 for a pinned keyword without votes. Keywords"
            " are sorted by it, then by id, unless there are boosts, pins or `diversity`."
        ),
    ]
    novel: Novel
    match: Annotated[
        MatchType,
        doc(
            "`exact`: its words are the query's; `phrase`: they are all in the query, in their"
            " order; `broad`: any other. Case, accents, punctuation and spaces do not count."
        ),
    ]
    confidence: NotRequired[
        Annotated[
            float,
            doc(
                "The probability that the keyword is relevant, calibrated on held-out queries with"
                " the bundle's own `depth` and `memorization`; of bundles that have it. By score,"
                " it never rises from one keyword to the next."
            ),
        ]
    ]
    boost: NotRequired[
        Annotated[
            float,
            doc("Keywords are ordered by their score times this factor; missing if it is 1."),
        ]
    ]
    pinned: NotRequired[Annotated[bool, doc("True for a keyword that a rule puts there.")]]
    votes: NotRequired[Annotated[float, doc("Their sum, after a second ranking.")]]
    metadata: NotRequired[MetadataAnswer]
    evidence: NotRequired[Annotated[list[EvidenceAnswer], doc("Sorted by weight, largest first.")]]


class FusedItemAnswer(TypedDict):
    """An item of the item memory that a query attended to."""

    kind: Annotated[str, doc("`predicted`: near to the query; `given`: named by the request.")]
    id: str
    text: str
    similarity: Similarity  # of the item's text and the query


class CorrectionAnswer(TypedDict):
    """A misspelled word of a query."""

    typed: Annotated[str, doc("The word, or two words, in lower case and without accents.")]
    read: Annotated[str, doc("What was searched instead.")]
    rows: Annotated[int, doc("How many rows of the memory have the words that were searched.")]


class ResultAnswer(TypedDict):
    """The keywords of one query. `items` is present only with `explain` and an item memory."""

    query: Annotated[str, doc("The query, without white space at its ends.")]
    searched: NotRequired[
        Annotated[str, doc("The text that was searched, if the query seemed to be misspelled.")]
    ]
    corrections: NotRequired[
        Annotated[list[CorrectionAnswer], doc("With `explain`: why `searched` is not `query`.")]
    ]

    score_kind: Annotated[
        ScoreKind,
        doc(
            "What the scores of the keywords are. `votes`: the sum of the votes, 0 to 1"
            " or, with weights, more; its size depends on the bundle, `memorization` and `depth`."
            " `probability`: of a second ranking, that the keyword is relevant; those behind its"
            " candidates follow with smaller scores. Scores of different kinds cannot be compared."
        ),
    ]
    items: NotRequired[
        Annotated[
            list[FusedItemAnswer],
            doc(
                "The items that the query was fused with before it was searched: the"
                " predicted ones by similarity, those of a request in its order."
            ),
        ]
    ]
    rules: NotRequired[
        Annotated[list[str], doc("With `explain`: ids of the rules that acted, if any did.")]
    ]
    without_rules: NotRequired[
        Annotated[list[str], doc("Ids of the keywords that would have answered without them.")]
    ]
    partial: NotRequired[
        Annotated[
            bool,
            doc("Always `true`: a shard has not answered, so keywords may be missing."),
        ]
    ]
    keywords: Annotated[list[KeywordAnswer], doc("At most `top_k`, best first.")]


def result_answer(prediction: Prediction, *, explain: bool) -> ResultAnswer:
    """Return the keywords of one query in the form of POST /predict."""
    rows: dict[int, EvidenceAnswer] = {}  # by `id()`: keywords share rows that voted for several
    keywords = [_keyword(keyword, explain, rows) for keyword in prediction.keywords]
    answer = answer_of(prediction.reading, prediction.score_kind, keywords)
    if explain and prediction.reading.corrections:
        answer["corrections"] = [
            {"typed": one.typed, "read": one.read, "rows": one.rows}
            for one in prediction.reading.corrections
        ]
    if prediction.partial:
        answer["partial"] = True
    if prediction.rules:
        answer["rules"] = list(prediction.rules)
        answer["without_rules"] = list(prediction.without_rules)
    if prediction.items is not None:
        answer["items"] = [
            {
                "kind": "given" if item.given else "predicted",
                "id": item.id,
                "text": item.text,
                "similarity": item.similarity,
            }
            for item in prediction.items
        ]
    return answer


def answer_of(
    reading: Reading, score_kind: ScoreKind, keywords: list[KeywordAnswer]
) -> ResultAnswer:
    """Return the keywords of one query; `searched` is there if another text was searched."""
    query, searched = reading.query, reading.text
    if not reading.corrections:
        return {"query": query, "score_kind": score_kind, "keywords": keywords}
    return {"query": query, "searched": searched, "score_kind": score_kind, "keywords": keywords}


def shown_boost(boost: float) -> float:
    """Return the shortest decimal number that has this fp32 value: 1.2 for 1.2000000476837158."""
    return float(str(np.float32(boost)))


def _keyword(keyword: Keyword, explain: bool, rows: dict[int, EvidenceAnswer]) -> KeywordAnswer:
    document: KeywordAnswer = {
        "id": keyword.id,
        "text": keyword.text,
        "score": keyword.score,
        "novel": keyword.novel,
        "match": keyword.match,
    }
    if keyword.confidence is not None:
        document["confidence"] = keyword.confidence
    if keyword.boost != 1.0:
        document["boost"] = shown_boost(keyword.boost)
    if keyword.pinned:
        document["pinned"] = True
    if explain:
        if keyword.votes is not None:
            document["votes"] = keyword.votes
        document["metadata"] = dict(keyword.metadata)
        document["evidence"] = [
            rows.get(id(row)) or rows.setdefault(id(row), _evidence(row))
            for row in keyword.evidence
        ]
    return document


def _evidence(row: Evidence) -> EvidenceAnswer:
    document: EvidenceAnswer = {
        "kind": row.kind,
        "text": row.text,
        "similarity": row.similarity,
        "weight": row.weight,
    }
    if row.words:
        document["words"] = row.words
    if row.hub:
        document["hub"] = row.hub
    return document
