"""The types of request bodies and query strings; upper bounds come from `Limits`.

Requests are strict: no unknown field, no number in place of a string, no string in place of a
number. The classes name the fields for the code that reads them; the functions below make the
models that validate and document them, with the configured bounds.
"""

import unicodedata
from collections.abc import Callable
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

from service.core.errors import echoed
from service.core.types import NewInstance, NewLabel
from service.settings import Limits


class StrictModel(BaseModel):
    """A request body or query string."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PredictBody(StrictModel):
    """The body of POST /predict."""

    queries: list[str]
    top_k: int
    memorization: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Weight of the votes of training queries and clicks, against those of the"
        " labels' own texts (the paper's lambda), 0 to 1. Default: the bundle's.",
    )
    depth: int | None
    explain: bool = Field(
        False,
        description="Add to each keyword its metadata and the rows of the memory that voted for it"
        " (`evidence`).",
    )
    min_version: int = Field(
        0,
        ge=0,
        le=2**63 - 1,
        description="Answer from this memory version or a later one: pass the `version` of a write"
        " to be sure to see it. The request waits for it, at most until its deadline.",
    )
    deadline_ms: int


class LabelBody(StrictModel):
    """One label of POST /labels."""

    id: str | None
    text: str
    queries: list[str]
    metadata: dict[str, str]

    def to_label(self) -> NewLabel:
        """The label; its id is the normalised text where the request has none."""
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
                raise ValueError(f"label {place} repeats the id {echoed(label_id)}")
            seen.add(label_id)
        return labels


class InstanceBody(StrictModel):
    """One instance of POST /instances."""

    query: str
    labels: list[str]

    def to_instance(self) -> NewInstance:
        """The instance, without repeated labels."""
        return NewInstance(query=self.query, labels=tuple(dict.fromkeys(self.labels)))


class InstancesBody(StrictModel):
    """The body of POST /instances."""

    instances: list[Any]


class Page(StrictModel):
    """The query string of GET /labels."""

    # In a query string, numbers are text.
    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)

    after: str = Field("", description="Show labels whose id is greater than this one.")
    limit: int


# The same names as `BundleDirectory.path` takes.
BundleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class SnapshotBody(StrictModel):
    """The body of POST /admin/snapshot."""

    bundle: BundleName | None = Field(
        None,
        description="Name of the new bundle: 1 to 128 letters, digits, '.', '_' and '-'. Default:"
        " the name of the served bundle, '-v' and the memory version.",
    )


class ReloadBody(StrictModel):
    """The body of POST /admin/reload."""

    bundle: BundleName = Field(
        description="Name of the bundle to serve: a folder in the service's folder of bundles."
    )


class RequestModels:
    """The models of all requests, under the configured limits."""

    def __init__(self, limits: Limits) -> None:
        text = query_text(limits)
        self.predict = _predict(text, limits)
        self.label = _label(text, limits)
        self.labels = _labels(self.label, limits)
        self.instances = _instances(text, limits)
        self.page = _page(limits)


def normalised(text: str) -> str:
    """The id of a label that was posted without one: NFKC, case-folded, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _predict(text: Any, limits: Limits) -> type[PredictBody]:
    return create_model(
        "PredictRequest",
        __base__=PredictBody,
        queries=(
            list[text],
            Field(min_length=1, max_length=limits.queries, description="The texts to match."),
        ),
        top_k=(
            int,
            Field(10, ge=1, le=limits.top_k, description="The most keywords for each query."),
        ),
        depth=(
            int | None,
            Field(
                None,
                ge=1,
                le=limits.depth,
                description="How many of the nearest keys vote for each query (the paper's b)."
                " Default: the bundle's.",
            ),
        ),
        deadline_ms=(
            int,
            Field(
                limits.default_deadline_ms,
                ge=1,
                le=limits.deadline_ms,
                description="Milliseconds after which the request is given up with a 504.",
            ),
        ),
    )


def _label(text: Any, limits: Limits) -> type[LabelBody]:
    short = Annotated[str, StringConstraints(max_length=limits.metadata_characters)]
    return create_model(
        "Label",
        __base__=LabelBody,
        id=(
            text | None,
            Field(None, description="Default: the text in NFKC, case-folded, with single spaces."),
        ),
        text=(text, Field(description="The keyword, as it is shown and matched.")),
        queries=(
            list[text],
            Field(
                [],
                max_length=limits.label_queries,
                description="Queries known to lead to this label; each becomes an instance.",
            ),
        ),
        metadata=(
            Annotated[dict[short, short], AfterValidator(_fits(limits.metadata_bytes))],
            Field(
                {},
                max_length=limits.metadata_entries,
                description="Any names and values; returned with predictions that `explain`. In"
                f" UTF-8, at most {limits.metadata_bytes} bytes together.",
            ),
        ),
    )


def _labels(label: Any, limits: Limits) -> type[LabelsBody]:
    return create_model(
        "LabelsRequest",
        __base__=LabelsBody,
        labels=(
            list[label],
            Field(
                min_length=1,
                max_length=limits.labels,
                description="Labels to create or replace, each id at most once.",
            ),
        ),
    )


def _instances(text: Any, limits: Limits) -> type[InstancesBody]:
    labels = Field(
        min_length=1,
        max_length=limits.instance_labels,
        description="Ids of the labels that were clicked for the query; all must exist.",
    )
    instance: Any = create_model(
        "Instance",
        __base__=InstanceBody,
        query=(text, Field(description="The query as it was typed.")),
        labels=(list[text], labels),
    )
    return create_model(
        "InstancesRequest",
        __base__=InstancesBody,
        instances=(
            list[instance],
            Field(min_length=1, max_length=limits.instances, description="The clicks to learn."),
        ),
    )


def _page(limits: Limits) -> type[Page]:
    limit = Field(
        min(100, limits.page), ge=1, le=limits.page, description="The most labels on the page."
    )
    return create_model("Page", __base__=Page, limit=(int, limit))


def query_text(limits: Limits) -> Any:
    """The type of a query, a label's text or an id: trimmed, not blank, not too long."""
    return Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1, max_length=limits.query_characters),
        AfterValidator(_not_blank),
    ]


def _fits(most: int) -> Callable[[dict[str, str]], dict[str, str]]:
    """Refuse metadata of more than `most` bytes, which every explained answer would repeat."""

    def check(metadata: dict[str, str]) -> dict[str, str]:
        size = sum(len(text.encode()) for pair in metadata.items() for text in pair)
        if size > most:
            raise ValueError(f"has {size} bytes, names and values; at most {most} are allowed")
        return metadata

    return check


def _not_blank(text: str) -> str:
    """Refuse U+001C to U+001F, white space for Python alone: the label's id would be empty."""
    if not text.strip():
        raise ValueError("consists of white space only")
    return text
