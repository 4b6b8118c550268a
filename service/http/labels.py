"""/labels: create, replace, change, list, show and delete keywords."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NotRequired, TypeVar

import numpy as np
from pydantic import AfterValidator, Field, WithJsonSchema

from service.core.changes import DeleteLabel
from service.core.errors import DatePassed, InvalidInput, NotReady, Overloaded, RefusedLabels
from service.core.label import LABEL_FIELDS, behind_metadata, facts_of, to_store
from service.core.label_filter import (
    LARGEST_INTEGER,
    Metadata,
    MetadataValue,
    json_bytes,
    list_items,
    metadata_bytes,
    parse_json,
)
from service.core.memory.decay import PLAIN
from service.core.memory.row_ownership import NEWEST_QUERIES
from service.core.memory.view import View
from service.core.prediction.answers import Novel
from service.core.tenant import Tenant
from service.core.text_identity import distinct_aliases, uncontrolled
from service.core.types import Label, NewLabel, TypedDict, doc
from service.engine.writing.label_merge import LabelMerge
from service.engine.writing.operations import (
    PostLabels,
    Refuse,
    RequestKey,
    Written,
    WrittenLabel,
)
from service.http.bodies import (
    DEFAULT_ID,
    Bound,
    KnownId,
    Page,
    StrictModel,
    Text,
    at_most,
    distinct,
    limited,
    next_page,
    with_fields,
)
from service.http.bounded_model import BoundedModel
from service.http.endpoint import Call, Routes, Version, VersionAnswer, route
from service.http.label_stream import (
    STREAM_BYTES,
    LabelStatus,
    LabelStream,
    LineAnswer,
    LineRefusal,
    MergeAnswer,
    StreamEnd,
)
from service.http.predictions import filter_warnings
from service.http.request_body import Hold
from service.settings import Limits

PAGE_BYTES = 4_194_304  # of labels; a larger page ends early, with fewer labels than asked for
MOST_LISTS = 16  # waiting or in progress, per worker; beyond it 429
Listed = TypeVar("Listed")
Entry = TypeVar("Entry", NewLabel, LabelMerge)
_LABEL_PATH = "/labels/{label_id:label_id}"


def _value(limits: Limits) -> list[Any]:
    """Return the check and the schema of one value of a label's metadata."""
    characters, most = limits.metadata_characters, limits.metadata_entries
    allowed = (
        f"must be a string of at most {characters:,} characters, a number, true, false, or a list"
        f" of at most {most:,} such strings"
    )

    def check(value: Any) -> Any:
        if isinstance(value, int | float) and abs(value) > LARGEST_INTEGER:
            raise ValueError(f"must be at most {LARGEST_INTEGER:,} in size")
        listed = value if isinstance(value, list) else [value]
        texts = [one for one in listed if isinstance(one, str)]
        alone = isinstance(value, str | int | float)
        if not (alone or (isinstance(value, list) and len(texts) == len(value) <= most)):
            raise ValueError(allowed)
        if any(len(text) > characters for text in texts):
            raise ValueError(allowed)
        for text in texts:
            uncontrolled(text)
        return value

    text = {"type": "string", "maxLength": characters}
    number = {"type": "number", "minimum": -LARGEST_INTEGER, "maximum": LARGEST_INTEGER}
    schema = [text, number, {"type": "boolean"}]
    listed = {"type": "array", "items": text, "maxItems": most}
    return [AfterValidator(check), WithJsonSchema({"anyOf": [*schema, listed]})]


def _fits(limits: Limits) -> list[Any]:
    """Refuse metadata of too many bytes, which every explained answer repeats, or list items."""

    def check(metadata: Metadata) -> Metadata:
        size, most = metadata_bytes(metadata), limits.metadata_bytes
        if size > most:
            raise ValueError(f"has {size} bytes, names and values; at most {most} are allowed")
        items, most = list_items(metadata), limits.metadata_entries
        if items > most:
            raise ValueError(f"has {items} items in its lists; at most {most} are allowed")
        return metadata

    return [AfterValidator(check)]


_Name = Annotated[str, at_most("metadata_characters"), AfterValidator(uncontrolled)]
_Value = Annotated[Any, Bound(_value)]


def _label_fields(*, merged: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield the declared fields of a body of POST /labels, or of PATCH if they are `merged`."""
    posted = Annotated[dict[_Name, _Value], at_most("metadata_entries"), Bound(_fits)]
    entries = Annotated[dict[_Name, _Value | None], at_most("metadata_entries")]
    metadata = entries if merged else posted
    for one in LABEL_FIELDS:
        kind: Any = {list[str]: list[Text], dict[str, Any]: metadata}.get(one.kind, one.kind)
        if one.limit:
            kind = Annotated[kind, at_most(one.limit)]
        default = one.unchanged if merged else one.in_body
        if default is None or one.default is None:
            kind = kind | None
        description = one.changed if merged else one.description
        yield one.name, kind, Field(default, description=description)


LATER = frozenset(one.name for one in LABEL_FIELDS if one.sparse)
_POSTED = {one.name: one.in_body for one in LABEL_FIELDS}  # by default
_UNCHANGED = {one.name: one.unchanged for one in LABEL_FIELDS}


@with_fields(_label_fields(merged=False))
class LabelBody(StrictModel):
    """One label of POST /labels, with the declared fields."""

    later: ClassVar[frozenset[str]] = LATER

    id: Text | None = Field(None, description=DEFAULT_ID.format("label"))
    text: Text = Field(description="The keyword, as it is shown and matched.")

    def to_label(self, tenant: Tenant | None = None) -> NewLabel:
        """Return a tenant's label. Its id is empty if the request has none, to be chosen later.

        Raises `InvalidInput` for metadata of another tenant, and `DatePassed`.
        """
        given = _given(self, _POSTED)
        if tenant is not None:
            metadata = given.get("metadata", {})
            require_own(metadata, tenant)
            given["metadata"] = {**metadata, tenant.field: tenant.value}
        if "aliases" in given:
            given["aliases"] = distinct_aliases(self.text, given["aliases"])
        return NewLabel(id=self.id or "", text=self.text, **given)


def _given(body: StrictModel, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body's fields that differ from their defaults, as they are kept."""
    return {
        one.name: one.read(value)
        for one in LABEL_FIELDS
        if (value := getattr(body, one.name)) != defaults[one.name]
    }


def require_own(metadata: Mapping[str, MetadataValue | None], tenant: Tenant) -> None:
    """Raise `InvalidInput` for metadata that would give a label to another tenant."""
    if tenant.field in metadata and metadata[tenant.field] != tenant.value:
        raise InvalidInput(
            f"this client writes only labels with {tenant}", field=f"metadata.{tenant.field}"
        )


class LabelsRequest(StrictModel):
    """The body of POST /labels."""

    labels: Annotated[list[LabelBody], *distinct("labels")] = Field(
        description="Labels to create or replace, each id at most once."
    )


@with_fields(_label_fields(merged=True))
class LabelMergeBody(StrictModel):
    """The body of PATCH /labels/{label_id}, with the declared fields."""

    later: ClassVar[frozenset[str]] = LATER

    text: Text | None = Field(None, description="Replaces the text. Default: it stays.")

    def to_merge(self, label_id: str, tenant: Tenant | None) -> LabelMerge:
        """Return the changes to the label with this id; raises as `LabelBody.to_label`."""
        given = _given(self, _UNCHANGED)
        if tenant is not None:
            require_own(given.get("metadata", {}), tenant)
        return LabelMerge(id=label_id, text=self.text, given=given)


class LabelChangeBody(LabelMergeBody):
    """One change of PATCH /labels."""

    id: KnownId = Field(description="Id of the label.")


class LabelChanges(StrictModel):
    """The body of PATCH /labels."""

    labels: Annotated[list[LabelChangeBody], *distinct("labels")] = Field(
        description="Changes of labels, each id at most once."
    )


class LabelPageQuery(Page):
    """The query string of GET /labels."""

    every: bool = Field(
        False, description="Also list the bundle's labels, not only those posted since."
    )
    text: Text | None = Field(
        None,
        description="Only labels of which the text or an alias contains all of these words, in any"
        " order.",
    )

    filter: str | None = Field(
        None, description="Only labels that pass this filter, as JSON; see POST /predict."
    )


class LabelsAnswer(TypedDict):
    """The answer of POST /labels. The labels are on disk, and visible from `version` on."""

    version: Version
    labels: Annotated[list[LabelStatus], doc("One for each label, in the order of the request.")]


def _answered() -> Iterator[tuple[str, Any]]:
    """Yield name and type of each declared field of a label's answer."""
    for one in LABEL_FIELDS:
        kind: Any = Annotated[one.answer or one.kind, doc(one.answered)]
        yield one.name, NotRequired[kind] if one.sparse else kind


_WRITTEN = Annotated[int, doc("Memory version that wrote the label; 0: it came with the bundle.")]
_LABEL_TYPES = {
    **{"id": str, "text": str},
    **behind_metadata(dict(_answered()), {"novel": Novel, "version": _WRITTEN}),
}
if TYPE_CHECKING:
    LabelAnswer = dict[str, Any]
else:
    LabelAnswer = TypedDict("LabelAnswer", _LABEL_TYPES)
    LabelAnswer.__doc__ = "A label as the memory holds it."


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


if TYPE_CHECKING:
    ShownLabelAnswer = dict[str, Any]
else:
    ShownLabelAnswer = TypedDict("ShownLabelAnswer", {**_LABEL_TYPES, "clicked": ClicksAnswer})
    ShownLabelAnswer.__doc__ = "The answer of GET /labels/{label_id}: a label with its clicks."


class LabelPage(TypedDict):
    """A page of labels, in order of id."""

    version: Version
    labels: list[LabelAnswer]
    next: Annotated[str | None, doc("`after` of the next page; null on the last page.")]
    warnings: NotRequired[Annotated[list[str], doc("As in POST /predict.")]]


def shown_label(view: View, label_id: str, tenant: Tenant | None) -> ShownLabelAnswer:
    """Return the answer of GET /labels/{label_id} for a tenant; raises `UnknownLabel`."""
    label = view.labels.of(tenant).require_shown(label_id)
    return {**label_answer(label), "clicked": _clicks(view, label.index)}


def _clicks(view: View, column: int) -> ClicksAnswer:
    clicked = view.ownership.queries_for(column)
    answer: ClicksAnswer = {"total": len(clicked), "newest": list(clicked.newest)}
    weights = {
        # The weight as it was posted: the shortest number that gives the same float32.
        query: float(str(np.float32(vote.weight)))
        for query in clicked.newest
        if (vote := view.ownership.special_votes_of(query).get(column, PLAIN)).weight != 1.0
    }
    return {**answer, "weights": weights} if weights else answer


def label_answer(label: Label) -> LabelAnswer:
    """Return a label in the form of GET /labels."""
    stored = to_store(facts_of(label))
    facts = {one.name: one.shown(stored[one.name]) for one in LABEL_FIELDS if one.name in stored}
    answer = {"id": label.id, "text": label.text}
    return {**answer, **facts, "novel": label.novel, "version": label.version}


def label_status(label: WrittenLabel, *, tenant: Tenant | None = None) -> LabelStatus:
    """Return what was done with one posted label, with ids as its tenant knows them."""

    def shown(stored_id: str) -> str:
        return stored_id if tenant is None else tenant.shown_id(stored_id)

    return {
        "id": shown(label.id),
        "status": label.status,
        "neighbours": [
            {"id": shown(neighbour.id), "text": neighbour.text, "similarity": neighbour.similarity}
            for neighbour in label.neighbours
        ],
    }


def label_size(label: Label) -> int:
    """Estimate the bytes of a label's answer."""
    texts = sum(4 + len(text) for text in (label.id, label.text, *label.aliases, *label.queries))
    return 100 + texts + json_bytes(label.metadata)


class ListThread:
    """Makes lists of labels one after the other, in a thread of its own; few may wait.

    The first page after a write sorts all ids, and a search for words looks at each posted label:
    tens of milliseconds for 20,000 of them. Many at once would slow down all queries.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="lists")
        self._unanswered = 0

    async def run(self, listed: Callable[[], Listed]) -> Listed:
        """Return the result of `listed`; raises `Overloaded` if `MOST_LISTS` are not answered."""
        if self._unanswered >= MOST_LISTS:
            raise Overloaded(f"{MOST_LISTS} lists of labels are being made", retry_after=1)
        self._unanswered += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, listed)
        finally:
            self._unanswered -= 1


_LINES = LineAnswer | LineRefusal | StreamEnd


class LabelRoutes(Routes):
    """Reads and writes labels."""

    @cached_property
    def _lists(self) -> ListThread:
        return ListThread()

    def stream_labels(self, hold: Hold, tenant: Tenant | None) -> LabelStream:
        """Write a stream of a tenant's labels, a batch at a time."""
        return self._stream(
            hold,
            tenant,
            model=BoundedModel(limited(LabelBody, self.limits)),
            read=lambda body: body.to_label(tenant),
            apply=partial(self.engine.put_labels, tenant=tenant),
        )

    def stream_merges(self, hold: Hold, tenant: Tenant | None) -> LabelStream:
        """Make a stream of changes of a tenant's labels, a batch at a time."""
        return self._stream(
            hold,
            tenant,
            model=BoundedModel(limited(LabelChangeBody, self.limits)),
            read=lambda body: body.to_merge(body.id, tenant),
            apply=partial(self._merge, tenant),
        )

    def _stream(self, hold: Hold, tenant: Tenant | None, **lines: Any) -> LabelStream:
        if self.draining() or not self.engine.ready():
            raise NotReady("the service takes no labels now; try again later")
        hold.add(STREAM_BYTES)
        return LabelStream(
            **lines,
            side_thread=self.side_thread,
            status=partial(label_status, tenant=tenant),
            draining=self.draining,
            limits=self.limits,
            telemetry=self.telemetry,
            hold=hold,
        )

    @route("POST /labels", stream=stream_labels, line=LabelBody, line_answer=_LINES)
    async def put_labels(self, call: Call[LabelsRequest]) -> LabelsAnswer:
        """Create or replace labels.

        A label that exists is replaced as a whole: queries and metadata that the request leaves out
        are gone; clicks stay. PATCH changes a part of a label.
        """
        tenant = call.tenant

        async def write(labels: Sequence[NewLabel]) -> Written:
            operation = PostLabels(items=tuple(labels), tenant=tenant)
            return await self.engine.write(operation, request=call.idempotency)

        written = await self.write_each(call, "labels", lambda body: body.to_label(tenant), write)
        return _labels_answer(written, tenant)

    @route("GET /labels")
    async def list_labels(self, call: Call[LabelPageQuery]) -> LabelPage:
        """List labels: those posted since the bundle was written, or every one."""
        page = call.input
        wanted = None
        if page.filter is not None:
            wanted = parse_json(page.filter, at="filter", most=self.limits.filter_values)
        after = page.cursor

        def listed() -> tuple[View, list[Label]]:
            memory = self.engine.loaded.memory
            view = memory.only(memory.of_tenant(memory.view, call.tenant), wanted)
            table = view.labels if page.text is None else view.labels_with_words(page.text)
            found = table.page(after=after, size=page.limit + 1, every=page.every)
            return view, found

        view, labels = await self._lists.run(listed)
        shown = _first(labels[: page.limit], PAGE_BYTES)
        answer: LabelPage = {
            "version": view.version,
            "labels": [label_answer(label) for label in shown],
            "next": next_page(shown, labels),
        }
        if view.filter_warnings:
            answer["warnings"] = filter_warnings(view.filter_warnings)
        return answer

    @route(f"GET {_LABEL_PATH}")
    async def get_label(self, call: Call[None]) -> ShownLabelAnswer:
        """Show one label."""
        return shown_label(self.engine.view, call.path_id, call.tenant)

    @route("PATCH /labels", stream=stream_merges, line=LabelChangeBody, line_answer=_LINES)
    async def merge_labels(self, call: Call[LabelChanges]) -> LabelsAnswer:
        """Change parts of labels.

        What a change leaves out stays as it is. A change without `text`, `aliases` and `queries`
        encodes nothing, such as one of a price or a stock. Of a JSON body, all changes are made or
        none; an unknown id is a 422 that names its place. In a stream, a refused line does not
        affect the others.
        """
        tenant = call.tenant
        merge = partial(self._merge, tenant, request=call.idempotency)
        written = await self.write_each(
            call, "labels", lambda body: body.to_merge(body.id, tenant), merge
        )
        return _labels_answer(written, tenant)

    async def _merge(
        self,
        tenant: Tenant | None,
        merges: Sequence[LabelMerge],
        *,
        request: RequestKey | None = None,
    ) -> Written:
        return await self.engine.merge_labels(
            merges, limits=self.limits, tenant=tenant, request=request
        )

    @route(f"PATCH {_LABEL_PATH}")
    async def merge_label(self, call: Call[LabelMergeBody]) -> MergeAnswer:
        """Change a part of one label.

        What the request leaves out stays as it is.
        """
        tenant, request = call.tenant, call.idempotency
        try:
            merge = call.input.to_merge(call.path_id, tenant)
            written = await self._merge(tenant, [merge], request=request)
        except DatePassed as error:
            written = await self.engine.write(Refuse(error=error), request=request)
        except RefusedLabels as error:
            raise error.errors[0] from None
        [label] = written.labels
        return {**label_status(label, tenant=tenant), "version": written.version}

    @route(f"DELETE {_LABEL_PATH}")
    async def delete_label(self, call: Call[None]) -> VersionAnswer:
        """Delete one label."""
        return await self.delete(call, DeleteLabel)


def _labels_answer(written: Written, tenant: Tenant | None) -> LabelsAnswer:
    status = partial(label_status, tenant=tenant)
    return {"version": written.version, "labels": list(map(status, written.labels))}


def _first(labels: Sequence[Label], size: int) -> Sequence[Label]:
    """Return the first labels, up to the one that reaches `size` bytes in total."""
    ends = accumulate(label_size(label) for label in labels)
    return labels[: 1 + sum(end < size for end in ends)]
