"""Wire types: what requests and answers look like. Ranges come from `Limits`.

Requests are strict: no unknown field, no number in place of a string, no string in place of a
number. Annotations are evaluated here, since the models close over the limits.
"""

import unicodedata
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    create_model,
    field_validator,
)

from service.core.types import NewInstance, NewLabel
from service.settings import Limits


class StrictModel(BaseModel):
    """A request body or query string."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PredictBody(StrictModel):
    """The body of POST /predict; `predict_body` adds the limits."""

    queries: list[str]
    top_k: int = 10
    memorization: float | None = Field(
        None, ge=0, le=1, description="The paper's lambda; default: the bundle's."
    )
    depth: int | None = None
    explain: bool = Field(False, description="Return the rows that voted for each keyword.")
    min_version: int = Field(
        0, ge=0, le=2**63 - 1, description="The answer reflects at least this memory version."
    )
    deadline_ms: int


class LabelBody(StrictModel):
    """One label of POST /labels; `labels_body` adds the limits."""

    id: str | None = None
    text: str
    queries: list[str] = []
    metadata: dict[str, str] = {}

    def to_label(self) -> NewLabel:
        """The label with an id; one without gets its normalised text."""
        return NewLabel(
            id=self.id or normalised(self.text),
            text=self.text,
            queries=tuple(dict.fromkeys(self.queries)),
            metadata=self.metadata,
        )


class LabelsBody(StrictModel):
    """The body of POST /labels."""

    labels: list[Any]

    @field_validator("labels")
    @classmethod
    def _ids_differ(cls, labels: list[LabelBody]) -> list[LabelBody]:
        seen: set[str] = set()
        for place, label in enumerate(labels):
            label_id = label.to_label().id
            if label_id in seen:
                raise ValueError(f"label {place} repeats the id {label_id!r}")
            seen.add(label_id)
        return labels


class Page(StrictModel):
    """The query string of GET /labels."""

    # Numbers arrive as text in a query string.
    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)

    after: str = Field("", description="The id after which the page starts.")
    limit: int = Field(100, ge=1)


class InstanceBody(StrictModel):
    """One instance of POST /instances; `RequestModels` adds the limits."""

    query: str
    labels: list[str]

    def to_instance(self) -> NewInstance:
        """The instance, each label once."""
        return NewInstance(query=self.query, labels=tuple(dict.fromkeys(self.labels)))


class InstancesBody(StrictModel):
    """The body of POST /instances."""

    instances: list[Any]


class SnapshotBody(StrictModel):
    """The body of POST /admin/snapshot; it may be left out."""

    bundle: str | None = Field(
        None, description="The new bundle's name; default: the served one's and the version."
    )


class ReloadBody(StrictModel):
    """The body of POST /admin/reload."""

    bundle: str = Field(description="The name of a folder beside the served bundle.")


class RequestModels:
    """The request models under given limits."""

    def __init__(self, limits: Limits) -> None:
        text = Annotated[
            str,
            StringConstraints(
                strip_whitespace=True, min_length=1, max_length=limits.query_characters
            ),
            AfterValidator(_not_blank),
        ]
        short = Annotated[str, StringConstraints(max_length=limits.metadata_characters)]
        label = create_model(
            "Label",
            __base__=LabelBody,
            id=(text | None, None),
            text=(text, ...),
            queries=(Annotated[list[text], Field(max_length=limits.label_queries)], []),
            metadata=(
                Annotated[dict[short, short], Field(max_length=limits.metadata_entries)],
                {},
            ),
        )
        self.predict: type[PredictBody] = create_model(
            "PredictRequest",
            __base__=PredictBody,
            queries=(list[text], Field(min_length=1, max_length=limits.queries)),
            top_k=(int, Field(10, ge=1, le=limits.top_k)),
            depth=(
                int | None,
                Field(None, ge=1, le=limits.depth, description="Retrieved keys a query."),
            ),
            deadline_ms=(
                int,
                Field(limits.default_deadline_ms, ge=1, le=limits.deadline_ms),
            ),
        )
        instance = create_model(
            "Instance",
            __base__=InstanceBody,
            query=(text, ...),
            labels=(
                Annotated[list[text], Field(min_length=1, max_length=limits.instance_labels)],
                ...,
            ),
        )
        self.label: type[LabelBody] = label
        self.instances: type[InstancesBody] = create_model(
            "InstancesRequest",
            __base__=InstancesBody,
            instances=(list[instance], Field(min_length=1, max_length=limits.instances)),  # type: ignore[valid-type]
        )
        self.labels: type[LabelsBody] = create_model(
            "LabelsRequest",
            __base__=LabelsBody,
            labels=(list[label], Field(min_length=1, max_length=limits.labels)),  # type: ignore[valid-type]
        )


class EvidenceAnswer(BaseModel):
    """A row that voted."""

    kind: str
    text: str
    similarity: float
    weight: float


class KeywordAnswer(BaseModel):
    """A predicted keyword; `evidence` and `metadata` only with `explain`."""

    id: str
    text: str
    score: float
    novel: bool
    metadata: dict[str, str] | None = None
    evidence: list[EvidenceAnswer] | None = None


class ResultAnswer(BaseModel):
    """The keywords of one query."""

    query: str
    keywords: list[KeywordAnswer]


class PredictAnswer(BaseModel):
    """The answer of POST /predict."""

    bundle: str
    version: int
    results: list[ResultAnswer]
    timing_ms: dict[str, float]


class NeighbourAnswer(BaseModel):
    """A seen label whose classifier enriched a new one."""

    id: str
    text: str
    similarity: float


class LabelStatus(BaseModel):
    """What became of one posted label: created, updated or unchanged."""

    id: str
    status: str
    neighbours: list[NeighbourAnswer]


class LabelsAnswer(BaseModel):
    """The answer of POST /labels."""

    version: int
    labels: list[LabelStatus]


class VersionAnswer(BaseModel):
    """The memory version that holds a write."""

    version: int


class InstancesAnswer(VersionAnswer):
    """The answer of POST /instances."""

    accepted: int


class BundleAnswer(VersionAnswer):
    """A bundle's name, and the memory version that it was written at or serves."""

    bundle: str


class LabelAnswer(BaseModel):
    """A label as the memory holds it."""

    id: str
    text: str
    queries: list[str]
    metadata: dict[str, str]
    novel: bool
    version: int


class LabelPage(BaseModel):
    """Live labels in order of id; `next` is the cursor of the next page, null on the last."""

    version: int
    labels: list[LabelAnswer]
    next: str | None


class Problem(BaseModel):
    """RFC 9457 problem details."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[dict[str, str]] | None = None


class LineAnswer(LabelStatus):
    """What became of the label in one line of a stream."""

    line: int
    version: int


class LineRefusal(BaseModel):
    """Why one line of a stream was not applied."""

    line: int
    error: Problem


class StreamEnd(BaseModel):
    """The last object of a stream that had to end: lines behind this one were not applied."""

    stopped_after: int
    error: Problem


def _not_blank(text: str) -> str:
    """Refuse what only Python takes for spaces (U+001C to U+001F): its id would be empty."""
    if not text.strip():
        raise ValueError("consists of spaces only")
    return text


def normalised(text: str) -> str:
    """The id of a label that came without one: NFKC, case-folded, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
