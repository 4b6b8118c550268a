"""/labels: create, replace, change, list, show and delete keywords."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from service.core.errors import NotReady
from service.core.types import Label, NewLabel
from service.engine.writing.label_merge import merge_label
from service.engine.writing.operations import PutLabels, RemoveLabel
from service.http.answers import (
    LabelPage,
    LabelsAnswer,
    LineAnswer,
    LineRefusal,
    MergeAnswer,
    ShownLabelAnswer,
    StreamEnd,
    VersionAnswer,
)
from service.http.endpoint import Call, Endpoint, LineStream
from service.http.large.held_bytes import Hold
from service.http.request_models.labels import LabelBody, LabelsBody, MergeBody, Page
from service.http.responses import (
    label_answer,
    label_size,
    labels_answer,
    merge_answer,
    shown_label,
)
from service.http.routes.dependencies import RouteDependencies
from service.http.streaming.label_stream import STREAM_BYTES, LabelStream

PAGE_BYTES = 4_194_304  # of labels, after which a page ends before it has as many as asked for
FEW_LABELS = 8  # whose ids the event loop makes itself, in some milliseconds at most
_LABEL_PATH = "/labels/{label_id:label_id}"
_PATH_PARAMETERS = {"label_id": "The label's id, percent-encoded; it may hold slashes."}


class LabelId(PathConvertor):
    """Any text; Starlette's own `path` ends at a line break."""

    regex = "(?s:.*)"


class LabelRoutes:
    """Reads and writes labels."""

    def __init__(self, dependencies: RouteDependencies) -> None:
        self._dependencies = dependencies
        self._engine, self._models = dependencies.engine, dependencies.models
        register_url_convertor("label_id", LabelId())

    def endpoints(self) -> list[Endpoint[Any]]:
        """The declared routes."""
        return [self._put(), self._list(), self._get(), self._merge(), self._delete()]

    def _put(self) -> Endpoint[LabelsBody]:
        return Endpoint(
            method="POST",
            path="/labels",
            summary="Create or replace labels",
            description="A label that exists is replaced as a whole: queries and metadata that the"
            " request leaves out are gone; clicks stay. PATCH changes a part of a label.",
            handler=self.put_labels,
            scope="write",
            body=self._models.labels,
            stream=LineStream(
                line=self._models.label,
                answer=LineAnswer | LineRefusal | StreamEnd,
                handler=self.stream_labels,
            ),
            idempotent=True,
            answer=LabelsAnswer,
            refusals=(429, 503, 504, 507),
        )

    def _list(self) -> Endpoint[Page]:
        return Endpoint(
            method="GET",
            path="/labels",
            summary="List the labels posted since the bundle was written",
            handler=self.list_labels,
            scope="read",
            query=self._models.page,
            answer=LabelPage,
            refusals=(503,),
        )

    def _get(self) -> Endpoint[None]:
        return Endpoint(
            method="GET",
            path=_LABEL_PATH,
            summary="Show one label",
            handler=self.get_label,
            scope="read",
            path_parameters=_PATH_PARAMETERS,
            answer=ShownLabelAnswer,
            refusals=(404, 503),
        )

    def _merge(self) -> Endpoint[MergeBody]:
        return Endpoint(
            method="PATCH",
            path=_LABEL_PATH,
            summary="Change a part of one label",
            description="What the request leaves out stays as it is.",
            handler=self.merge_label,
            scope="write",
            path_parameters=_PATH_PARAMETERS,
            body=self._models.merge,
            idempotent=True,
            answer=MergeAnswer,
            refusals=(404, 429, 503, 504, 507),
        )

    def _delete(self) -> Endpoint[None]:
        return Endpoint(
            method="DELETE",
            path=_LABEL_PATH,
            summary="Delete one label",
            handler=self.delete_label,
            scope="write",
            path_parameters=_PATH_PARAMETERS,
            idempotent=True,
            answer=VersionAnswer,
            refusals=(404, 429, 503, 504),
        )

    async def put_labels(self, call: Call[LabelsBody]) -> LabelsAnswer:
        """Write all labels of a request, or none."""
        labels = await self._labels(call.input.labels)
        written = await self._engine.write(PutLabels(labels=labels), request=call.idempotency)
        return labels_answer(written)

    async def _labels(self, bodies: Sequence[LabelBody]) -> tuple[NewLabel, ...]:
        """The labels; to normalise many long texts takes long."""

        def labels() -> tuple[NewLabel, ...]:
            return tuple(body.to_label() for body in bodies)

        if len(bodies) <= FEW_LABELS:
            return labels()
        return await self._dependencies.side_thread.run(labels)

    def stream_labels(self, _request: Request, hold: Hold) -> Response:
        """Write a stream of labels, a batch at a time."""
        dependencies = self._dependencies
        if dependencies.draining() or not self._engine.ready():
            raise NotReady("the service takes no labels now; try again later")
        hold.add(STREAM_BYTES)
        return LabelStream(
            model=self._models.label,
            side_thread=dependencies.side_thread,
            apply=self._engine.put_labels,
            draining=dependencies.draining,
            limits=dependencies.limits,
            telemetry=dependencies.telemetry,
            hold=hold,
        )

    async def list_labels(self, call: Call[Page]) -> LabelPage:
        """One page of the posted labels."""
        page, view = call.input, self._engine.view
        # In a thread: the first page after a write sorts all ids.
        labels = await asyncio.to_thread(view.labels.page, after=page.after, size=page.limit + 1)
        shown = _first(labels[: page.limit], PAGE_BYTES)
        return {
            "version": view.version,
            "labels": [label_answer(label) for label in shown],
            "next": shown[-1].id if len(labels) > len(shown) else None,
        }

    async def get_label(self, call: Call[None]) -> ShownLabelAnswer:
        """A label of the bundle or a posted one."""
        return shown_label(self._engine.view, _label_id(call))

    async def merge_label(self, call: Call[MergeBody]) -> MergeAnswer:
        """Merge what is given into a label."""
        merge, engine = call.input.to_merge(_label_id(call)), self._engine
        written = await merge_label(
            merge,
            label=lambda: engine.view.labels.as_posted(merge.id),
            write=partial(engine.write, request=call.idempotency),
            limits=self._dependencies.limits,
        )
        return merge_answer(written)

    async def delete_label(self, call: Call[None]) -> VersionAnswer:
        """Remove a label and its rows from the memory."""
        written = await self._engine.write(
            RemoveLabel(id=_label_id(call)), request=call.idempotency
        )
        return {"version": written.version}


def _first(labels: Sequence[Label], size: int) -> Sequence[Label]:
    """The first labels, up to the one with which they have `size` bytes."""
    ends = accumulate(label_size(label) for label in labels)
    return labels[: 1 + sum(end < size for end in ends)]


def _label_id(call: Call[Any]) -> str:
    label_id: str = call.request.path_params["label_id"]
    return label_id
