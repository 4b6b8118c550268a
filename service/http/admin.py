"""Routes for operators: probes, /info, /metrics, and /admin with snapshots and reloads."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from typing import Annotated, Any, NotRequired, cast

from pydantic import Field
from starlette.responses import Response

from service.core.types import ScoreKind, TypedDict, doc
from service.engine.engine import State
from service.http.bodies import BundleName, BundlePlace, StrictModel
from service.http.endpoint import Call, Routes, Version, VersionAnswer, route
from service.http.problems import problem, problem_response

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class SnapshotBody(StrictModel):
    """The body of POST /admin/snapshot."""

    bundle: BundleName | None = Field(
        None,
        description="Name of the new bundle: 1 to 128 letters, digits, '.', '_' and '-'. Default:"
        " the name of the served bundle, '-v' and the memory version.",
    )


class ReloadBody(StrictModel):
    """The body of POST /admin/reload."""

    bundle: BundlePlace = Field(
        description="Name of the bundle to serve: a folder in the service's folder of bundles. If"
        " bundles are in an object store, its URL may be given instead of its name."
    )
    other_data: bool = Field(
        False,
        description="Serve it even if most labels that the label log takes for granted are unknown"
        " to it: what the log says of them counts for nothing.",
    )


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


class AdminRoutes(Routes):
    """Snapshots and reloads, the probes, /info and /metrics."""

    @cached_property
    def _rendering(self) -> ThreadPoolExecutor:
        """A single thread that renders all scrapes, apart from event loop and answering threads."""
        return ThreadPoolExecutor(1, thread_name_prefix="metrics")

    @route("POST /admin/snapshot", scope="admin", body_required=False, refusals=(409,))
    async def snapshot(self, call: Call[SnapshotBody]) -> BundleAnswer:
        """Write everything that is served as a new bundle."""
        name, version = await self.engine.snapshot(call.input.bundle)
        return {"bundle": name, "version": version}

    @route("DELETE /admin/snapshot", scope="admin")
    async def cancel_snapshot(self, _call: Call[None]) -> CancelAnswer:
        """Give up the snapshot that is being written."""
        return {"bundle": await self.engine.cancel_snapshot()}

    @route("POST /admin/reload", scope="admin", refusals=(409,))
    async def reload(self, call: Call[ReloadBody]) -> ReloadAnswer:
        """Serve another bundle from now on."""
        before, loaded = await self.engine.reload(
            call.input.bundle, other_data=call.input.other_data
        )
        facts, version = loaded.bundle.manifest, loaded.memory.view.version
        was, now = before.bundle.manifest.score_kind, facts.score_kind
        # The name by which it was asked for; a bundle that was moved has another one in itself.
        name = loaded.bundle.folder.name
        answer: ReloadAnswer = {"bundle": name, "version": version}
        return answer if was == now else {**answer, "score_kind": now, "score_kind_before": was}

    @route("GET /health/live", scope="", refusals=(503,))
    async def live(self, _call: Call[None]) -> LiveAnswer | Response:
        """Whether the process works; 503: restart it."""
        if self.engine.broken():
            detail = "a part of the service has died; restart the service"
            return problem_response(problem(503, "Broken", detail))
        return {"status": "live"}

    @route("GET /health/ready", scope="", refusals=(503,))
    async def ready(self, _call: Call[None]) -> ReadyAnswer | Response:
        """Whether queries are answered; 503: send none."""
        if not self.engine.ready():
            detail = f"the service is {self.engine.state.value}"
            if self.engine.state is State.READY:
                detail = "writes are refused: the writer has died, or the label log was replaced"
            return problem_response(problem(503, "Not ready", detail))
        if self.leaving():
            return problem_response(
                problem(503, "Not ready", "the service will stop; send no more")
            )
        answer: ReadyAnswer = {"status": "ready", "writes": self.engine.writes()}
        if self.engine.divided:
            described = await asyncio.to_thread(self.engine.shards)
            answer["shards"] = cast(ShardsAnswer, described)
        return answer

    @route("GET /info")
    async def info(self, call: Call[None]) -> InfoAnswer:
        """Bundle, counts and limits."""
        described = await asyncio.to_thread(self.engine.describe, call.tenant)
        return cast(InfoAnswer, {**described, "limits": asdict(self.limits)})

    @route("GET /metrics", scope="metrics", answer_media_type="text/plain")
    async def metrics(self, _call: Call[None]) -> Response:
        """Prometheus metrics."""
        self.engine.measure()
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(self._rendering, self.telemetry.render)
        return Response(text, media_type=METRICS_TYPE)
