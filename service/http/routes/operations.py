"""Routes for operators: probes, /info, /metrics, and /admin with snapshots and reloads."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from typing import Any, cast

from starlette.responses import Response

from service.engine.engine import State
from service.http.answers import (
    BundleAnswer,
    CancelAnswer,
    InfoAnswer,
    LiveAnswer,
    ReadyAnswer,
    ReloadAnswer,
    ShardsAnswer,
)
from service.http.endpoint import Call, Endpoint, Routes
from service.http.problems import problem, problem_response
from service.http.request_models import ReloadBody, SnapshotBody

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class OperationRoutes(Routes):
    """Snapshots and reloads, the probes, /info and /metrics."""

    @cached_property
    def _rendering(self) -> ThreadPoolExecutor:
        """A single thread that renders all scrapes, apart from event loop and answering threads."""
        return ThreadPoolExecutor(1, thread_name_prefix="metrics")

    def endpoints(self) -> list[Endpoint[Any]]:
        return [
            Endpoint(
                route="POST /admin/snapshot",
                summary="Write everything that is served as a new bundle",
                handler=self.snapshot,
                scope="admin",
                body=SnapshotBody,
                body_required=False,
                answer=BundleAnswer,
                refusals=(409,),
            ),
            Endpoint(
                route="DELETE /admin/snapshot",
                summary="Give up the snapshot that is being written",
                handler=self.cancel_snapshot,
                scope="admin",
                answer=CancelAnswer,
            ),
            Endpoint(
                route="POST /admin/reload",
                summary="Serve another bundle from now on",
                handler=self.reload,
                scope="admin",
                body=ReloadBody,
                answer=ReloadAnswer,
                refusals=(409,),
            ),
            Endpoint(
                route="GET /health/live",
                summary="Whether the process works; 503: restart it",
                handler=self.live,
                answer=LiveAnswer,
                refusals=(503,),
            ),
            Endpoint(
                route="GET /health/ready",
                summary="Whether queries are answered; 503: send none",
                handler=self.ready,
                answer=ReadyAnswer,
                refusals=(503,),
            ),
            Endpoint(
                route="GET /info",
                summary="Bundle, counts and limits",
                handler=self.info,
                scope="read",
                answer=InfoAnswer,
            ),
            Endpoint(
                route="GET /metrics",
                summary="Prometheus metrics",
                handler=self.metrics,
                scope=self.metrics_scope,
                answer_media_type="text/plain",
            ),
        ]

    async def snapshot(self, call: Call[SnapshotBody]) -> BundleAnswer:
        """Write a snapshot; the answer comes when the bundle is complete on disk."""
        name, version = await self.engine.snapshot(call.input.bundle)
        return {"bundle": name, "version": version}

    async def cancel_snapshot(self, _call: Call[None]) -> CancelAnswer:
        """Cancel the running snapshot; its own request gets 409."""
        return {"bundle": await self.engine.cancel_snapshot()}

    async def reload(self, call: Call[ReloadBody]) -> ReloadAnswer:
        """Open, verify and warm up a bundle, then serve it instead of the present one."""
        before, loaded = await self.engine.reload(
            call.input.bundle, other_data=call.input.other_data
        )
        facts, version = loaded.bundle.manifest, loaded.memory.view.version
        was, now = before.bundle.manifest.score_kind, facts.score_kind
        # The name by which it was asked for; a bundle that was moved has another one in itself.
        name = loaded.bundle.folder.name
        answer: ReloadAnswer = {"bundle": name, "version": version}
        return answer if was == now else {**answer, "score_kind": now, "score_kind_before": was}

    async def live(self, _call: Call[None]) -> LiveAnswer | Response:
        """Answer 503 if only a restart can help."""
        if self.engine.broken():
            detail = "a part of the service has died; restart the service"
            return problem_response(problem(503, "Broken", detail))
        return {"status": "live"}

    async def ready(self, _call: Call[None]) -> ReadyAnswer | Response:
        """Answer 503 until queries are answered, and again while the service shuts down."""
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

    async def info(self, call: Call[None]) -> InfoAnswer:
        """Describe the served bundle and the limits on requests; to a tenant, its own part."""
        described = await asyncio.to_thread(self.engine.describe, call.tenant)
        return cast(InfoAnswer, {**described, "limits": asdict(self.limits)})

    async def metrics(self, _call: Call[None]) -> Response:
        """Return all metrics in Prometheus' text format."""
        self.engine.measure()
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(self._rendering, self.telemetry.render)
        return Response(text, media_type=METRICS_TYPE)
