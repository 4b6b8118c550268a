"""What `serve` hands to the launcher, and the launcher to every worker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from service.engine.engine import Engine
from service.http.auth import Access
from service.settings import LEAST_CONNECTIONS_A_WAITER, Settings
from service.telemetry import Telemetry


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """What is served, how, and to whom; it is pickled to reach a worker's process.

    `bundles` is the folder of snapshots and of bundles that a reload opens by name; `state` is the
    folder of the label log or a PostgreSQL URL.
    """

    bundle: Path
    bundles: Path
    state: Path | str
    settings: Settings
    access: Access

    def with_connections(self, most: int) -> ServeConfig:
        """The same with at most so many connections, of which waiters take at most half."""
        settings = self.settings
        waiters = min(settings.engine.version_waiters, most // LEAST_CONNECTIONS_A_WAITER)
        server = replace(settings.server, connections=min(settings.server.connections, most))
        engine = replace(settings.engine, version_waiters=waiters)
        return replace(self, settings=replace(settings, engine=engine, server=server))

    def engine(self, telemetry: Telemetry) -> Engine:
        """An engine over bundle and state; not opened yet."""
        return Engine(
            self.bundle,
            self.state,
            bundles=self.bundles,
            settings=self.settings.engine,
            telemetry=telemetry,
        )
