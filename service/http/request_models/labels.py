"""The bodies of writes to /labels, and the query string that lists them."""

import unicodedata
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StringConstraints,
    create_model,
    field_validator,
)

from service.core.types import NewLabel
from service.engine.writing.label_merge import LabelMerge, metadata_bytes
from service.http.request_models.texts import StrictModel, refuse_repeated
from service.settings import Limits


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
        refuse_repeated((label.to_label().id for label in labels), what="label")
        return labels


class MergeBody(StrictModel):
    """The body of PATCH /labels/{label_id}."""

    text: str | None
    queries: list[str]
    metadata: dict[str, str | None]

    def to_merge(self, label_id: str) -> LabelMerge:
        """What changes of the label with this id."""
        return LabelMerge(
            id=label_id, text=self.text, queries=tuple(self.queries), metadata=self.metadata
        )


class Page(StrictModel):
    """The query string of GET /labels."""

    # In a query string, numbers are text.
    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)

    after: str = Field("", description="Show labels whose id is greater than this one.")
    limit: int


def normalised(text: str) -> str:
    """The id of a label that was posted without one: NFKC, case-folded, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def label_model(text: Any, limits: Limits) -> type[LabelBody]:
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


def labels_model(label: Any, limits: Limits) -> type[LabelsBody]:
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


def merge_model(text: Any, limits: Limits) -> type[MergeBody]:
    short = Annotated[str, StringConstraints(max_length=limits.metadata_characters)]
    return create_model(
        "LabelMerge",
        __base__=MergeBody,
        text=(text | None, Field(None, description="Replaces the text. Default: it stays.")),
        queries=(
            list[text],
            Field(
                [],
                max_length=limits.label_queries,
                description="Are added to the label's queries, which may be at most"
                f" {limits.label_queries} together.",
            ),
        ),
        metadata=(
            dict[short, short | None],
            Field(
                {},
                max_length=limits.metadata_entries,
                description="Single entries that are added or replaced; null removes an entry. The"
                " result is held to the limits of a label that is posted.",
            ),
        ),
    )


def page_model(limits: Limits) -> type[Page]:
    limit = Field(
        min(100, limits.page), ge=1, le=limits.page, description="The most labels on the page."
    )
    return create_model("Page", __base__=Page, limit=(int, limit))


def _fits(most: int) -> Callable[[dict[str, str]], dict[str, str]]:
    """Refuse metadata of more than `most` bytes, which every explained answer would repeat."""

    def check(metadata: dict[str, str]) -> dict[str, str]:
        size = metadata_bytes(metadata)
        if size > most:
            raise ValueError(f"has {size} bytes, names and values; at most {most} are allowed")
        return metadata

    return check
