"""The values that pass between the parts of the core; all frozen.

Shapes used throughout the core: B queries, b retrieved keys a query (the depth), d dimensions,
N instances, L labels, R = N + L rows of the knowledge memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Doubles = NDArray[np.float64]
Rows = NDArray[np.int64]
Indices = NDArray[np.int32]
Bits = NDArray[np.uint8]
Bools = NDArray[np.bool_]


class Role(Enum):
    """Which side of the match a text stands on; some encoders prompt the two differently."""

    QUERY = "query"
    LABEL = "label"


class RowKind(Enum):
    """What a row of the knowledge memory was made from (Eq. 3 of RAE-XMC: K = [X; Z])."""

    INSTANCE = "instance"
    LABEL = "label"


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """How one request is answered.

    `memorization` is the paper's lambda in [0, 1]; `depth` is b, the number of retrieved keys;
    `exact` scans all keys instead of searching the graph (evaluation only).
    """

    top_k: int = 10
    memorization: float = 0.5
    depth: int = 200
    explain: bool = False
    exact: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One row that voted for a keyword; the weights of all its rows sum to the keyword's score."""

    kind: RowKind
    text: str
    similarity: float
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Keyword:
    """A predicted label."""

    id: str
    text: str
    score: float
    novel: bool
    metadata: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The answer to one query; keywords descend by score, ties stand in order of label id."""

    query: str
    keywords: tuple[Keyword, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answers to one request, the memory version they reflect, and seconds by stage."""

    version: int
    predictions: tuple[Prediction, ...]
    seconds: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class NewLabel:
    """A label as a client posts it; `queries` are known queries it was clicked for."""

    id: str
    text: str
    queries: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class NewInstance:
    """A query as a client posts it, with the ids of the labels that it was clicked for."""

    query: str
    labels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """A label as the memory holds it.

    `index` is its column of V; it stays the same when the label is replaced, and is never used
    again once it is deleted. `novel` labels were not in the bundle's training data. `version` is
    the memory version that wrote it, 0 for the bundle's own.
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
    """One entry of the label log.

    `vectors` are the fp16 embeddings of the event's texts, [n, d] as appended and flat as read
    back, so that a restart need not encode again; they hold only for the encoder whose
    fingerprint is `encoder`.
    """

    sequence: int
    kind: str
    body: Mapping[str, Any]
    vectors: Halves | None = field(default=None, repr=False)
    encoder: str = ""
