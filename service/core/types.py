"""Values that pass between the modules of the core; all are frozen.

Shapes used throughout the core: B queries, b retrieved keys per query (the depth), d dimensions,
N instances, L labels, R = N + L rows of the knowledge memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

# Before Python 3.12 pydantic does not accept `typing.TypedDict`.
from typing_extensions import TypedDict as TypedDict

from service.core.label import Label as Label
from service.core.label import NewLabel as NewLabel
from service.core.label_filter import Metadata
from service.core.options import MatchType as MatchType
from service.core.options import PredictOptions as PredictOptions
from service.core.options import Spelling as Spelling

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Form = TypeVar("Form", bound="DataclassInstance")

# The names give the element type. Shapes are given where an array is used.
Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Doubles = NDArray[np.float64]
Rows = NDArray[np.int64]  # row numbers of the memory
Indices = NDArray[np.int32]  # columns of V
Bits = NDArray[np.uint8]  # a bitmap, little-endian
Bools = NDArray[np.bool_]

DeviceName = Literal["cpu", "cuda"]  # the device that encodes and searches
# Scores are sums of votes, or probabilities after reranking. The two cannot be compared.
ScoreKind = Literal["votes", "probability"]
EvidenceKind = Literal["instance", "label", "alias"]  # a row's block, or an alias among instances


def doc(text: str) -> Any:
    """Return the description of an answer's field, for the OpenAPI document."""
    return Field(description=text)


class Role(Enum):
    """The role of a text. Some encoders use different prompts for queries and for other texts."""

    QUERY = "query"
    LABEL = "label"
    ITEM = "item"


class RowKind(Enum):
    """The block of the knowledge memory that a row belongs to (Eq. 3 of RAE-XMC: K = [X; Z])."""

    INSTANCE = "instance"
    LABEL = "label"


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """A word of a query (or two) as it was `typed`, and what it was `read` as.

    `rows` of the memory contain the words that it was read as.
    """

    typed: str
    read: str
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The text that a query is searched as: itself, or with corrections.

    `known` are words of the query that are known to be in the memory; others may be, too.
    """

    query: str
    text: str
    corrections: tuple[Correction, ...] = ()
    known: Set[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A row that voted for a keyword. The weights of all its rows add up to the sum of votes.

    `words` is what shared words added to the `similarity` of the vectors, and `hub` what was
    subtracted because the row is near to many queries, or added because it is near to few.
    """

    kind: EvidenceKind
    text: str
    similarity: float
    weight: float
    words: float = 0.0
    hub: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Keyword:
    """A predicted label. `novel` labels were not in the bundle's training data.

    `score` is the sum of its votes (Eq. 7). After reranking, `score` is the probability that the
    label is relevant, and `votes` is the sum. Without reranking, `votes` is None. `confidence` is
    the calibrated probability that it is relevant, or None if the bundle has none. `boost` is the
    factor of the score by which it is ordered; a `pinned` one stands where a rule puts it.
    """

    id: str
    text: str
    score: float
    novel: bool
    match: MatchType = "broad"
    confidence: float | None = None
    metadata: Metadata = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    votes: float | None = None
    boost: float = 1.0
    pinned: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedItem:
    """An item that a query's vector was fused with: a predicted one, or `given` by the request."""

    id: str
    text: str
    similarity: float
    given: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The keywords of one query, by descending score; ties are ordered by label id.

    `items` are those that the query attended to, or None without `explain` or an item memory.
    `rules` are the ids of the rules that acted, and `without_rules` those of the keywords that
    would have answered without them; both are empty without `explain`. It is `partial` if a shard
    of the memory has not answered.
    """

    reading: Reading
    keywords: tuple[Keyword, ...]
    items: tuple[FusedItem, ...] | None = None
    score_kind: ScoreKind = "votes"
    partial: bool = False
    rules: tuple[str, ...] = ()
    without_rules: tuple[str, ...] = ()

    @property
    def query(self) -> str:
        """The query as it was asked."""
        return self.reading.query


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The predictions of one request, perhaps `serialized`, with version and seconds per stage.

    `filter_warnings` are sentences about conditions of the request's filter that never hold.
    """

    version: int
    predictions: tuple[Prediction, ...]
    seconds: Mapping[str, float]
    serialized: tuple[bytes, ...] = ()
    filter_warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NewInstance:
    """A posted query with the labels clicked for it. A `weight` of 1 equals a trained vote.

    The query votes against its labels if the weight is less than 0. The weight decays from the time
    `at`, in microseconds; without a time it does not. With `clicks`, so many are added to the
    query's earlier ones, and the memory computes the weight.
    """

    query: str
    labels: tuple[str, ...]
    weight: float = 1.0
    at: int | None = None
    clicks: float | None = None

    @property
    def vote_weight(self) -> float:
        """Return the weight as it is stored: rounded to a float32."""
        return float(np.float32(self.weight))


@dataclass(frozen=True, kw_only=True, slots=True)
class NewItem:
    """A posted item: metadata that queries can attend to. `id` is empty if none is given."""

    id: str
    text: str


def label_as(form: type[Form], label: Any, **others: Any) -> Form:
    """Return a label in another form: `others`, and the fields that both forms have."""
    names = (one.name for one in fields(form))
    shared = {name: getattr(label, name) for name in names if hasattr(label, name)}
    return form(**{**shared, **others})


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event of the label log.

    `vectors` are the fp16 embeddings of the event's texts by the encoder with the fingerprint
    `encoder`. They are [n, d] when appended and flat when read, so a restart need not encode again.
    """

    sequence: int
    kind: str
    body: Mapping[str, Any]
    vectors: Halves | None = field(default=None, repr=False)
    encoder: str = ""
