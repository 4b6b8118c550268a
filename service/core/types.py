"""Values that pass between the modules of the core; all are frozen.

Shapes used throughout the core: B queries, b retrieved keys per query (the depth), d dimensions,
N instances, L labels, R = N + L rows of the knowledge memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# The names tell the element type; shapes are given where an array is used.
Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Doubles = NDArray[np.float64]
Rows = NDArray[np.int64]  # row numbers of the memory
Indices = NDArray[np.int32]  # columns of V
Bits = NDArray[np.uint8]  # a bitmap, little-endian
Bools = NDArray[np.bool_]

DeviceName = Literal["cpu", "cuda"]  # what encodes and searches


class Role(Enum):
    """What a text is; some encoders use different prompts for queries and for labels.

    An item of the item memory has the prompt of a label.
    """

    QUERY = "query"
    LABEL = "label"
    ITEM = "item"


class RowKind(Enum):
    """The block of the knowledge memory that a row belongs to (Eq. 3 of RAE-XMC: K = [X; Z])."""

    INSTANCE = "instance"
    LABEL = "label"


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """How one request is answered.

    `memorization` is the paper's lambda in [0, 1], the weight of instance keys; `depth` is b, the
    number of retrieved keys; `exact` scans all keys in place of searching the graphs (for
    evaluation); `explain` adds the evidence to each keyword, and to each query the items that it
    attended to. `items` are ids or texts of the metadata items that all queries attend to, in place
    of the predicted ones (None). The memory's best `candidates` are ranked a second time; at 0 its
    own ranking is the answer.
    """

    top_k: int = 10
    memorization: float = 0.5
    depth: int = 200
    explain: bool = False
    exact: bool = False
    items: tuple[str, ...] | None = None
    candidates: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A row that voted for a keyword; the weights of its rows add up to the sum of its votes."""

    kind: RowKind
    text: str
    similarity: float
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Keyword:
    """A predicted label; `novel` labels were not in the bundle's training data.

    `score` is the sum of its votes (Eq. 7). After a second ranking it is the probability that the
    label is relevant, and `votes` is that sum; None without one.
    """

    id: str
    text: str
    score: float
    novel: bool
    metadata: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    votes: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedItem:
    """An item that a query's vector was fused with: a predicted one, or `given` by the request."""

    id: str
    text: str
    similarity: float
    given: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The keywords of one query, by descending score; equal scores by label id.

    `items` are those that the query attended to, None where it is not explained or where the bundle
    has no item memory.
    """

    query: str
    keywords: tuple[Keyword, ...]
    items: tuple[FusedItem, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The predictions of one request, the version of the view, and the seconds of each stage.

    `serialized` holds the predictions in place of `predictions` where the request brought a
    function that serialises them.
    """

    version: int
    predictions: tuple[Prediction, ...]
    seconds: Mapping[str, float]
    serialized: tuple[bytes, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NewLabel:
    """A label as a client posts it; `queries` are queries for which it is known to be relevant."""

    id: str
    text: str
    queries: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class NewInstance:
    """A query as a client posts it, with the ids of the labels that were clicked for it.

    `weight` is how relevant these labels are to the query: 1 is as relevant as the average label of
    a trained query.
    """

    query: str
    labels: tuple[str, ...]
    weight: float = 1.0

    @property
    def vote_weight(self) -> float:
        """The weight as the values hold it: rounded to a float32."""
        return float(np.float32(self.weight))


@dataclass(frozen=True, kw_only=True, slots=True)
class NewItem:
    """An item of the item memory as a client posts it: metadata that queries can attend to."""

    id: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """A label as the memory holds it.

    `index` is its column of V: it stays the same when the label is replaced, and is not used again
    after the label is deleted. `novel` says that the label was not in the bundle's training data.
    `version` is the sequence number of its last write, 0 for a label that was never posted.
    """

    index: int
    id: str
    text: str
    queries: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    novel: bool = False
    version: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event of the label log.

    `vectors` are the fp16 embeddings of the event's texts, [n, d] when it is appended and flat when
    it is read, so that a restart need not encode again. They can be used only with the encoder
    whose fingerprint is `encoder`.
    """

    sequence: int
    kind: str
    body: Mapping[str, Any]
    vectors: Halves | None = field(default=None, repr=False)
    encoder: str = ""
