"""Probes, GET /info and GET /metrics: for those who run the service."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, cast

from starlette.responses import Response

from service.engine.status import State
from service.http.answers import InfoAnswer, LiveAnswer, ReadyAnswer
from service.http.endpoint import Call, Endpoint
from service.http.problems import problem, problem_response
from service.http.routes.dependencies import RouteDependencies

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HealthRoutes:
    """The probes, /info and /metrics."""

    def __init__(self, dependencies: RouteDependencies) -> None:
        self._engine, self._telemetry = dependencies.engine, dependencies.telemetry
        self._metrics_scope = dependencies.metrics_scope
        self._limits = asdict(dependencies.limits)
        # One thread for all scrapes, which is neither the event loop nor an answering thread.
        self._rendering = ThreadPoolExecutor(1, thread_name_prefix="metrics")

    def endpoints(self) -> list[Endpoint[Any]]:
        """The declared routes."""
        return [
            Endpoint(
                method="GET",
                path="/health/live",
                summary="Whether the process works; 503: restart it",
                handler=self.live,
                answer=LiveAnswer,
                refusals=(503,),
            ),
            Endpoint(
                method="GET",
                path="/health/ready",
                summary="Whether queries are answered; 503: send none",
                handler=self.ready,
                answer=ReadyAnswer,
                refusals=(503,),
            ),
            Endpoint(
                method="GET",
                path="/info",
                summary="Bundle, counts and limits",
                handler=self.info,
                scope="read",
                answer=InfoAnswer,
                refusals=(503,),
            ),
            Endpoint(
                method="GET",
                path="/metrics",
                summary="Prometheus metrics",
                handler=self.metrics,
                scope=self._metrics_scope,
                answer_media_type="text/plain",
            ),
        ]

    async def live(self, _call: Call[None]) -> LiveAnswer | Response:
        """503 when only a restart can help."""
        if self._engine.broken():
            detail = "a part of the service has died; restart the service"
            return problem_response(problem(503, "Broken", detail))
        return {"status": "live"}

    async def ready(self, _call: Call[None]) -> ReadyAnswer | Response:
        """503 until queries are answered, and again while the service shuts down."""
        if not self._engine.ready():
            detail = f"the service is {self._engine.state.value}"
            if self._engine.state is State.READY:
                detail = "writes are refused: the writer has died, or the label log was replaced"
            return problem_response(problem(503, "Not ready", detail))
        return {"status": "ready", "writes": self._engine.writes()}

    async def info(self, _call: Call[None]) -> InfoAnswer:
        """What is served, and what a request may ask for."""
        return cast(InfoAnswer, {**self._engine.describe(), "limits": self._limits})

    async def metrics(self, _call: Call[None]) -> Response:
        """All metrics in Prometheus' text format."""
        self._engine.measure()
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(self._rendering, self._telemetry.render)
        return Response(text, media_type=METRICS_TYPE)
