"""The types of successful answers.

Each field of an answer is defined here and nowhere else: the OpenAPI document is derived from these
types, and mypy holds the dicts that `responses` builds to them.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import Field

# Before Python 3.12 pydantic takes no TypedDict of `typing`.
from typing_extensions import TypedDict

from service.core.memory.row_ownership import NEWEST_QUERIES
from service.http.problems import Problem

Version = Annotated[
    int,
    Field(
        description="Memory version: the sequence number of the newest write that is included; 0"
        " for a bundle without writes."
    ),
]
Similarity = Annotated[float, Field(description="Cosine similarity, -1 to 1.")]
Novel = Annotated[
    bool, Field(description="Whether the label was posted, rather than part of the training data.")
]
Metadata = Annotated[dict[str, str], Field(description="As posted with the label.")]


class EvidenceAnswer(TypedDict):
    """One row of the memory that voted for a keyword."""

    kind: Annotated[
        str,
        Field(
            description="`instance`: a training query or a posted click; `label`: a label's text."
        ),
    ]
    text: Annotated[str, Field(description="The text of the row.")]
    similarity: Similarity  # of the row and the query
    weight: Annotated[
        float,
        Field(description="The row's part of the votes; the weights of all rows sum to them."),
    ]


class KeywordAnswer(TypedDict):
    """A predicted label. `metadata` and `evidence` are present only with `explain`."""

    id: str
    text: str
    score: Annotated[
        float,
        Field(
            description="The sum of the votes, 0 to 1 or, with weights, more; with a second ranking"
            " the probability that the keyword is relevant. Keywords are sorted by it, then by id."
        ),
    ]
    novel: Novel
    votes: NotRequired[Annotated[float, Field(description="Their sum, after a second ranking.")]]
    metadata: NotRequired[Metadata]
    evidence: NotRequired[
        Annotated[list[EvidenceAnswer], Field(description="Sorted by weight, largest first.")]
    ]


class FusedItemAnswer(TypedDict):
    """An item of the item memory that a query attended to."""

    kind: Annotated[
        str,
        Field(description="`predicted`: near to the query; `given`: named by the request."),
    ]
    id: str
    text: str
    similarity: Similarity  # of the item's text and the query


class ResultAnswer(TypedDict):
    """The keywords of one query. `items` is present only with `explain` and an item memory."""

    query: Annotated[str, Field(description="The query, without white space at its ends.")]
    items: NotRequired[
        Annotated[
            list[FusedItemAnswer],
            Field(
                description="The items that the query was fused with before it was searched: the"
                " predicted ones by similarity, those of a request in its order."
            ),
        ]
    ]
    keywords: Annotated[list[KeywordAnswer], Field(description="At most `top_k`, best first.")]


class TimingAnswer(TypedDict):
    """Milliseconds by stage, summed over the parts of the request that ran in parallel."""

    queue: Annotated[float, Field(description="Waiting for a free thread.")]
    encode: Annotated[float, Field(description="Queries to vectors; 0 for cached queries.")]
    retrieve: Annotated[float, Field(description="Searching the nearest keys.")]
    score: Annotated[float, Field(description="Votes to ranked labels, and a second ranking.")]


class PredictAnswer(TypedDict):
    """The answer of POST /predict."""

    bundle: Annotated[str, Field(description="The name of the bundle that answered.")]
    version: Version
    results: Annotated[
        list[ResultAnswer], Field(description="One for each query, in the order of the queries.")
    ]
    timing_ms: TimingAnswer


class NeighbourAnswer(TypedDict):
    """A training label whose classifier enriched the vector of a posted one (IRENE)."""

    id: str
    text: str
    similarity: Similarity  # of the two labels' texts


class LabelStatus(TypedDict):
    """What the service did with one posted label."""

    id: Annotated[str, Field(description="As posted; without one, made from the text.")]
    status: Annotated[str, Field(description="`created`, `updated` or `unchanged`.")]
    neighbours: Annotated[
        list[NeighbourAnswer],
        Field(description="At most 3; empty for a bundle without a combiner."),
    ]


class LabelsAnswer(TypedDict):
    """The answer of POST /labels. The labels are on disk, and visible from `version` on."""

    version: Version
    labels: Annotated[
        list[LabelStatus], Field(description="One for each label, in the order of the request.")
    ]


class MergeAnswer(LabelStatus):
    """The answer of PATCH /labels/{label_id}."""

    version: Version


class LineAnswer(MergeAnswer):
    """The answer to a line of a stream whose label was written."""

    line: Annotated[int, Field(description="Number of the line, from 1.")]


class LineRefusal(TypedDict):
    """The answer to a line of a stream that was not written; other lines are not affected."""

    line: Annotated[int, Field(description="Number of the line, from 1.")]
    error: Problem


class StreamEnd(TypedDict):
    """The last line of the answer to a stream that the service ended early."""

    stopped_after: Annotated[
        int,
        Field(description="Lines up to this number are answered above; no later line was written."),
    ]
    error: Problem


class VersionAnswer(TypedDict):
    """The memory version from which a write is visible."""

    version: Version


class InstancesAnswer(VersionAnswer):
    """The answer of POST /instances."""

    accepted: Annotated[int, Field(description="Number of instances in the request.")]


class BundleAnswer(VersionAnswer):
    """A bundle's name, and the memory version that it was written at or serves."""

    bundle: str


class CancelAnswer(TypedDict):
    """What was given up."""

    bundle: Annotated[
        str | None, Field(description="Name of the snapshot; null where none was being written.")
    ]


class SnapshotState(TypedDict):
    """How far a snapshot is."""

    bundle: Annotated[str, Field(description="Name of the new bundle.")]
    version: Version
    stage: Annotated[str, Field(description="`read`, then `index`, then `write`.")]
    rows: Annotated[int, Field(description="Rows that are indexed.")]
    of_rows: Annotated[int, Field(description="Rows to index; 0 while that is not known.")]
    seconds: Annotated[float, Field(description="Since its start.")]


class LabelAnswer(TypedDict):
    """A label as the memory holds it."""

    id: str
    text: str
    queries: Annotated[
        list[str], Field(description="Known queries posted with the label; empty for base labels.")
    ]
    metadata: Metadata
    novel: Novel
    version: Annotated[
        int, Field(description="Memory version that wrote the label; 0: it came with the bundle.")
    ]


class ClicksAnswer(TypedDict):
    """The queries that a label was clicked for since training, as posted to /instances."""

    total: int
    newest: Annotated[
        list[str], Field(description=f"At most {NEWEST_QUERIES} queries, the newest first.")
    ]
    weights: NotRequired[
        Annotated[
            dict[str, float],
            Field(
                description="The weights of those of `newest` whose click does not weigh 1;"
                " missing where each weighs 1."
            ),
        ]
    ]


class ShownLabelAnswer(LabelAnswer):
    """A label with what it has learned."""

    clicked: ClicksAnswer


class LabelPage(TypedDict):
    """A page of the labels posted since the bundle was written, in order of id."""

    version: Version
    labels: list[LabelAnswer]
    next: Annotated[
        str | None, Field(description="`after` of the next page; null on the last page.")
    ]


class LiveAnswer(TypedDict):
    """The process works."""

    status: Annotated[str, Field(description="Always `live`.")]


class ReadyAnswer(TypedDict):
    """Queries are answered."""

    status: Annotated[str, Field(description="Always `ready`.")]
    writes: Annotated[
        str,
        Field(
            description="`accepted`; `limited` while no child process can encode many texts;"
            " `failing` while the label log cannot be used."
        ),
    ]


class InfoAnswer(TypedDict):
    """What is served, and the limits on requests."""

    version: Version
    device: Annotated[str, Field(description="What encodes and searches: `cpu` or `cuda`.")]
    bundle: Annotated[dict[str, Any], Field(description="The bundle's manifest.")]
    novel_labels: Annotated[
        str,
        Field(
            description="What the vector of a posted label is made from: `text`, or `irene` where"
            " the bundle has a combiner."
        ),
    ]
    memory: Annotated[
        dict[str, int], Field(description="Counts of rows, index segments, labels and items.")
    ]
    snapshot: Annotated[
        SnapshotState | None, Field(description="The snapshot that is being written, if any.")
    ]
    limits: Annotated[dict[str, int], Field(description="The table [limits] of the settings.")]
