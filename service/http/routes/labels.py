"""/labels: create, replace, change, list, show and delete keywords; /instances: learn, unlearn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, TypeVar

from starlette.convertors import PathConvertor, register_url_convertor

from service.core.changes import DeleteLabel
from service.core.errors import NotReady, Overloaded, RefusedLabels
from service.core.label_filter import parse_json
from service.core.memory.view import View
from service.core.page_cursor import PageCursor
from service.core.tenant import Tenant
from service.core.types import Label, NewLabel
from service.engine.writing.label_merge import LabelMerge
from service.engine.writing.operations import (
    DeleteOne,
    PostInstances,
    PostLabels,
    Refuse,
    RequestKey,
    UnlearnInstances,
    Written,
)
from service.http.answers import (
    InstancesAnswer,
    LabelPage,
    LabelsAnswer,
    LeftOutAnswer,
    LineAnswer,
    LineRefusal,
    MergeAnswer,
    ShownLabelAnswer,
    StreamEnd,
    UnlearnAnswer,
    VersionAnswer,
)
from service.http.bounded_model import BoundedModel
from service.http.endpoint import Call, Endpoint, Routes
from service.http.label_stream import STREAM_BYTES, LabelStream
from service.http.request_body import Hold
from service.http.request_models import (
    ChangesBody,
    DatePassed,
    InstancesBody,
    LabelPageQuery,
    LabelsBody,
    MergeBody,
    UnlearnBody,
)
from service.http.responses import (
    filter_warnings,
    label_answer,
    label_size,
    label_status,
    left_out_answer,
    shown_label,
)

PAGE_BYTES = 4_194_304  # of labels; a larger page ends early, with fewer labels than asked for
MOST_LISTS = 16  # waiting or in progress, per worker; beyond it 429
Listed = TypeVar("Listed")
Entry = TypeVar("Entry", NewLabel, LabelMerge)
_LABEL_PATH = "/labels/{label_id:label_id}"


class LabelId(PathConvertor):
    """A path parameter of any text; Starlette's own `path` ends at a line break."""

    regex = "(?s:.*)"


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


class LabelRoutes(Routes):
    """Reads and writes labels, learns clicks and unlearns pairs."""

    @cached_property
    def _lists(self) -> ListThread:
        return ListThread()

    def endpoints(self) -> list[Endpoint[Any]]:
        register_url_convertor("label_id", LabelId())
        return [
            Endpoint(
                route="POST /labels",
                summary="Create or replace labels",
                description="A label that exists is replaced as a whole: queries and metadata that"
                " the request leaves out are gone; clicks stay. PATCH changes a part of a label.",
                handler=self.put_labels,
                scope="write",
                body=self.models.labels,
                stream=self.stream_labels,
                line=self.models.label,
                line_answer=LineAnswer | LineRefusal | StreamEnd,
                answer=LabelsAnswer,
            ),
            Endpoint(
                route="GET /labels",
                summary="List labels: those posted since the bundle was written, or every one",
                handler=self.list_labels,
                scope="read",
                query=self.models.label_page,
                answer=LabelPage,
            ),
            Endpoint(
                route=f"GET {_LABEL_PATH}",
                summary="Show one label",
                handler=self.get_label,
                scope="read",
                answer=ShownLabelAnswer,
            ),
            Endpoint(
                route="PATCH /labels",
                summary="Change parts of labels",
                description="What a change leaves out stays as it is. A change without `text`,"
                " `aliases` and `queries` encodes nothing, such as one of a price or a stock. Of a"
                " JSON body, all changes are made or none; an unknown id is a 422 that names its"
                " place. In a stream, a refused line does not affect the others.",
                handler=self.merge_labels,
                scope="write",
                body=self.models.changes,
                stream=self.stream_merges,
                line=self.models.change,
                line_answer=LineAnswer | LineRefusal | StreamEnd,
                answer=LabelsAnswer,
            ),
            Endpoint(
                route=f"PATCH {_LABEL_PATH}",
                summary="Change a part of one label",
                description="What the request leaves out stays as it is.",
                handler=self.merge_label,
                scope="write",
                body=self.models.merge,
                answer=MergeAnswer,
            ),
            Endpoint(
                route=f"DELETE {_LABEL_PATH}",
                summary="Delete one label",
                handler=self.delete_label,
                scope="write",
                answer=VersionAnswer,
            ),
            Endpoint(
                route="POST /instances",
                summary="Learn which labels queries were clicked for",
                handler=self.put_instances,
                scope="write",
                body=self.models.instances,
                answer=InstancesAnswer,
            ),
            Endpoint(
                route="DELETE /instances",
                summary="Take back or unlearn that queries lead to labels",
                description="The query loses the clicks and negative pairs that were posted for"
                " these labels, so that what was trained counts as before. With `trained`, it also"
                " loses what training and the labels' `queries` taught. Other labels of the query"
                " keep their votes. A pair that is not known is no error.",
                handler=self.delete_instances,
                scope="write",
                body=self.models.unlearn,
                answer=UnlearnAnswer,
            ),
        ]

    async def put_labels(self, call: Call[LabelsBody]) -> LabelsAnswer:
        """Write all labels of a request, or none."""
        tenant = call.tenant

        async def write(labels: Sequence[NewLabel]) -> Written:
            operation = PostLabels(items=tuple(labels), tenant=tenant)
            return await self.engine.write(operation, request=call.idempotency)

        written = await self._written(call, lambda body, at: body.to_label(tenant, at=at), write)
        return _labels_answer(written, tenant)

    async def merge_labels(self, call: Call[ChangesBody]) -> LabelsAnswer:
        """Make all changes of a request, or none."""
        tenant = call.tenant
        merge = partial(self._merge, tenant, request=call.idempotency)
        written = await self._written(
            call, lambda body, at: body.to_merge(body.id, tenant, at=at), merge
        )
        return _labels_answer(written, tenant)

    async def _written(
        self,
        call: Call[LabelsBody] | Call[ChangesBody],
        read: Callable[[Any, str], Entry],
        write: Callable[[Sequence[Entry]], Awaitable[Written]],
    ) -> Written:
        """Read each label or change of a body, given with its path, and write all."""
        try:
            # In a thread for a large body: its labels may have many queries.
            entries = await self.side_thread.run_if(
                call.hold.size,
                lambda: [
                    read(body, f"labels.{place}.") for place, body in enumerate(call.input.labels)
                ],
            )
        except DatePassed as error:
            return await self.engine.write(Refuse(error=error), request=call.idempotency)
        return await write(entries)

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

    def stream_labels(self, hold: Hold, tenant: Tenant | None) -> LabelStream:
        """Write a stream of a tenant's labels, a batch at a time."""
        return self._stream(
            hold,
            tenant,
            model=BoundedModel(self.models.label),
            read=lambda body: body.to_label(tenant),
            apply=partial(self.engine.put_labels, tenant=tenant),
        )

    def stream_merges(self, hold: Hold, tenant: Tenant | None) -> LabelStream:
        """Make a stream of changes of a tenant's labels, a batch at a time."""
        return self._stream(
            hold,
            tenant,
            model=BoundedModel(self.models.change),
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
            tenant=tenant,
            draining=self.draining,
            limits=self.limits,
            telemetry=self.telemetry,
            hold=hold,
        )

    async def list_labels(self, call: Call[LabelPageQuery]) -> LabelPage:
        """Return one page of the posted labels."""
        page = call.input
        wanted = None
        if page.filter is not None:
            wanted = parse_json(page.filter, at="filter", most=self.limits.filter_values)
        after = PageCursor.parse(page.after, field="after")

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
            "next": str(PageCursor.behind(shown[-1].id)) if len(labels) > len(shown) else None,
        }
        if view.filter_warnings:
            answer["warnings"] = filter_warnings(view.filter_warnings)
        return answer

    async def get_label(self, call: Call[None]) -> ShownLabelAnswer:
        """Return a label of the bundle, or a posted one."""
        return shown_label(self.engine.view, call.path_id, call.tenant)

    async def merge_label(self, call: Call[MergeBody]) -> MergeAnswer:
        """Merge the given fields into a label."""
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

    async def delete_label(self, call: Call[None]) -> VersionAnswer:
        """Remove a label and its rows from the memory."""
        written = await self.engine.write(
            DeleteOne(change=DeleteLabel, id=call.path_id, tenant=call.tenant),
            request=call.idempotency,
        )
        return {"version": written.version}

    async def put_instances(self, call: Call[InstancesBody]) -> InstancesAnswer:
        """Write all instances of a request or none, or skip unknown labels."""
        written, left_out = await self._write_instances(call, PostInstances)
        answer: InstancesAnswer = {"version": written.version, "accepted": written.accepted}
        if left_out is not None:
            answer["left_out"] = left_out
        return answer

    async def delete_instances(self, call: Call[UnlearnBody]) -> UnlearnAnswer:
        """Unlearn all pairs of a request or none, or skip unknown labels."""
        unlearn = partial(UnlearnInstances, trained=call.input.trained)
        written, left_out = await self._write_instances(call, unlearn)
        answer: UnlearnAnswer = {"version": written.version, "unlearned": written.accepted}
        if left_out is not None:
            answer["left_out"] = left_out
        return answer

    async def _write_instances(
        self,
        call: Call[InstancesBody] | Call[UnlearnBody],
        operation: Callable[..., PostInstances | UnlearnInstances],
    ) -> tuple[Written, list[LeftOutAnswer] | None]:
        """Return what was written, and the unknown labels if the request skips them."""
        # In a thread for a large body: its instances may have many labels.
        instances = await self.side_thread.run_if(
            call.hold.size, lambda: tuple(body.to_instance() for body in call.input.instances)
        )
        skip = call.input.unknown == "skip"
        written = await self.engine.write(
            operation(items=instances, skip_unknown=skip, tenant=call.tenant),
            request=call.idempotency,
        )
        return written, left_out_answer(written, instances) if skip else None


def _labels_answer(written: Written, tenant: Tenant | None) -> LabelsAnswer:
    status = partial(label_status, tenant=tenant)
    return {"version": written.version, "labels": list(map(status, written.labels))}


def _first(labels: Sequence[Label], size: int) -> Sequence[Label]:
    """Return the first labels, up to the one that reaches `size` bytes in total."""
    ends = accumulate(label_size(label) for label in labels)
    return labels[: 1 + sum(end < size for end in ends)]
