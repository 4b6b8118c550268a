"""What the handlers of all routes work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.engine.engine import Engine
from service.http.request_models import RequestModels
from service.http.side_thread import SideThread
from service.settings import Limits
from service.telemetry import Telemetry


@dataclass(frozen=True, kw_only=True)
class RouteDependencies:
    """The engine, the request models under the configured limits, and the metrics."""

    engine: Engine
    models: RequestModels
    limits: Limits
    telemetry: Telemetry
    metrics_scope: str | None  # that an API key must have for /metrics; None: no key is needed
    side_thread: SideThread
    draining: Callable[[], bool]  # whether the process was asked to end
