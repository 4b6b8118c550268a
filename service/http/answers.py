"""The types of successful answers.

Each field of an answer is defined only here: the OpenAPI document is derived from these types, and
mypy checks the dicts that `responses` builds against them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NotRequired

# Before Python 3.12 pydantic does not accept `typing.TypedDict`.
from typing_extensions import TypedDict

from service.core.memory.row_ownership import NEWEST_QUERIES
from service.core.types import MatchType, ScoreKind
from service.http.problems import Problem, doc

Version = Annotated[
    int,
    doc(
        "Memory version: the sequence number of the newest write that is included; 0"
        " for a bundle without writes."
    ),
]
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


class TimingAnswer(TypedDict):
    """Milliseconds by stage, summed over the parts of the request that ran in parallel."""

    queue: Annotated[float, doc("Waiting for a free thread.")]
    encode: Annotated[float, doc("Queries to vectors; 0 for cached queries.")]
    retrieve: Annotated[float, doc("Searching the nearest keys.")]
    score: Annotated[float, doc("Votes to ranked labels, and a second ranking.")]


class PredictAnswer(TypedDict):
    """The answer of POST /predict."""

    bundle: Annotated[str, doc("The name of the bundle that answered.")]
    version: Version
    results: Annotated[list[ResultAnswer], doc("One for each query, in the order of the queries.")]
    timing_ms: TimingAnswer
    warnings: NotRequired[
        Annotated[
            list[str],
            doc(
                "Conditions of the filter that never hold: no label has the field, or none has a"
                " value of the type that is asked for."
            ),
        ]
    ]


class NeighbourAnswer(TypedDict):
    """A training label whose classifier enriched the vector of a posted one (IRENE)."""

    id: str
    text: str
    similarity: Similarity  # of the two labels' texts


class LabelStatus(TypedDict):
    """What the service did with one posted label."""

    id: Annotated[str, doc("As posted; without one, that of the label of this text.")]
    status: Annotated[str, doc("`created`, `updated` or `unchanged`.")]
    neighbours: Annotated[
        list[NeighbourAnswer], doc("At most 3; empty for a bundle without a combiner.")
    ]


class LabelsAnswer(TypedDict):
    """The answer of POST /labels. The labels are on disk, and visible from `version` on."""

    version: Version
    labels: Annotated[list[LabelStatus], doc("One for each label, in the order of the request.")]


class MergeAnswer(LabelStatus):
    """The answer of PATCH /labels/{label_id}."""

    version: Version


class LineAnswer(MergeAnswer):
    """The answer to a line of a stream whose label was written."""

    line: Annotated[int, doc("Number of the line, from 1.")]


class LineRefusal(TypedDict):
    """The answer to a line of a stream that was not written; other lines are not affected."""

    line: Annotated[int, doc("Number of the line, from 1.")]
    error: Problem


class StreamEnd(TypedDict):
    """The last line of the answer to a stream that the service ended early."""

    stopped_after: Annotated[
        int, doc("Lines up to this number are answered above; no later line was written.")
    ]
    error: Problem


class VersionAnswer(TypedDict):
    """The memory version from which a write is visible."""

    version: Version


class LeftOutAnswer(TypedDict):
    """The labels of one instance that do not exist."""

    instance: Annotated[int, doc("Place of the instance in the request, from 0.")]
    labels: Annotated[list[str], doc("Their ids.")]


class InstancesAnswer(VersionAnswer):
    """The answer of POST /instances."""

    accepted: Annotated[int, doc("Number of instances that were learned, or were known already.")]
    left_out: NotRequired[
        Annotated[
            list[LeftOutAnswer], doc("What was not learned; present with `unknown` of `skip`.")
        ]
    ]


class UnlearnAnswer(VersionAnswer):
    """The answer of DELETE /instances."""

    unlearned: Annotated[
        int, doc("Number of pairs of a query and a label that were known, and no longer are.")
    ]
    left_out: NotRequired[
        Annotated[list[LeftOutAnswer], doc("Unknown labels; present with `unknown` of `skip`.")]
    ]


class BundleAnswer(VersionAnswer):
    """A bundle's name, and the memory version that it was written at or serves."""

    bundle: str


class ReloadAnswer(BundleAnswer):
    """The answer of POST /admin/reload; more than a `BundleAnswer` only if scores change."""

    score_kind: NotRequired[
        Annotated[
            ScoreKind,
            doc(
                "What scores are from now on, see /predict; only if they were something"
                " else before. A threshold on scores must be chosen again."
            ),
        ]
    ]
    score_kind_before: NotRequired[
        Annotated[ScoreKind, doc("What they were; only if that is something else.")]
    ]


class CancelAnswer(TypedDict):
    """The name of the canceled snapshot."""

    bundle: Annotated[str | None, doc("Name of the snapshot; null where none was being written.")]


class SnapshotState(TypedDict):
    """The progress of a snapshot."""

    bundle: Annotated[str, doc("Name of the new bundle.")]
    version: Version
    stage: Annotated[str, doc("`read`, then `index`, then `write`.")]
    rows: Annotated[int, doc("Rows that are indexed.")]
    of_rows: Annotated[int, doc("Rows to index; 0 while that is not known.")]
    seconds: Annotated[float, doc("Since its start.")]


class LabelAnswer(TypedDict):
    """A label as the memory holds it."""

    id: str
    text: str
    aliases: NotRequired[Annotated[list[str], doc("Further texts of the label, if it has any.")]]
    queries: Annotated[
        list[str], doc("Known queries posted with the label; empty for base labels.")
    ]
    metadata: MetadataAnswer
    novel: Novel
    version: Annotated[int, doc("Memory version that wrote the label; 0: it came with the bundle.")]
    starts_at: NotRequired[
        Annotated[str, doc("When it begins to be in answers, if it has a date.")]
    ]
    expires_at: NotRequired[Annotated[str, doc("From when on it is in no answer, if it expires.")]]
    boost: NotRequired[Annotated[float, doc("As posted with the label; missing if it is 1.")]]


class ClicksAnswer(TypedDict):
    """The queries that a label was clicked for, or is wrong for, as posted to /instances."""

    total: int
    newest: Annotated[list[str], doc(f"At most {NEWEST_QUERIES} queries, the newest first.")]
    weights: NotRequired[
        Annotated[
            dict[str, float],
            doc(
                "The weights of the queries in `newest` whose click does not weigh 1: less than 0"
                " if the label is wrong for the query. Missing if all clicks weigh 1."
            ),
        ]
    ]


class ShownLabelAnswer(LabelAnswer):
    """The answer of GET /labels/{label_id}: a label with its clicks."""

    clicked: ClicksAnswer


class LabelPage(TypedDict):
    """A page of labels, in order of id."""

    version: Version
    labels: list[LabelAnswer]
    next: Annotated[str | None, doc("`after` of the next page; null on the last page.")]
    warnings: NotRequired[Annotated[list[str], doc("As in POST /predict.")]]


class LiveAnswer(TypedDict):
    """The answer of GET /health/live."""

    status: Annotated[str, doc("Always `live`.")]


class ShardsAnswer(TypedDict):
    """The shards of a divided memory."""

    answering: Annotated[int, doc("Shards that answer.")]
    of: Annotated[int, doc("All shards.")]
    replicas: Annotated[int, doc("Processes that are known to hold a shard.")]
    attended: Annotated[
        bool, doc("`false` while the cluster cannot be reached, so no shard is started again.")
    ]


class ShardAnswer(TypedDict):
    """One shard of a divided memory."""

    version: Version
    rows: Annotated[int, doc("Rows whose keys it holds.")]
    built: Annotated[bool, doc("`false` while graphs are built, which makes searches slower.")]


class ReadyAnswer(TypedDict):
    """The answer of GET /health/ready."""

    status: Annotated[str, doc("Always `ready`.")]
    writes: Annotated[
        str,
        doc(
            "`accepted`; `limited` while no child process can encode many texts;"
            " `failing` while the label log cannot be used."
        ),
    ]
    shards: NotRequired[
        Annotated[
            ShardsAnswer,
            doc("Only with a divided memory. Queries need all shards, or get partial answers."),
        ]
    ]


class InfoAnswer(TypedDict):
    """What is served, and the limits on requests."""

    version: Version
    device: Annotated[str, doc("What encodes and searches: `cpu` or `cuda`.")]
    bundle: Annotated[dict[str, Any], doc("The bundle's manifest.")]
    score_kind: Annotated[
        ScoreKind, doc("What the scores of /predict are by default; each result says what its are.")
    ]
    novel_labels: Annotated[
        str,
        doc(
            "What the vector of a posted label is made from: `text`, or `irene` where"
            " the bundle has a combiner."
        ),
    ]
    memory: Annotated[dict[str, int], doc("Counts of rows, index segments, labels and items.")]
    shards: NotRequired[
        Annotated[
            list[ShardAnswer | None],
            doc("Only with a divided memory: what each shard holds, null if it does not answer."),
        ]
    ]
    snapshot: Annotated[SnapshotState | None, doc("The snapshot that is being written, if any.")]
    limits: Annotated[dict[str, int], doc("The table [limits] of the settings.")]
