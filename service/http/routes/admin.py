"""/admin: write what is served as a new bundle, and serve another bundle."""

from __future__ import annotations

from typing import Any

from service.http.answers import BundleAnswer, CancelAnswer
from service.http.endpoint import Call, Endpoint
from service.http.request_models.bundles import ReloadBody, SnapshotBody
from service.http.routes.dependencies import RouteDependencies


class AdminRoutes:
    """Snapshots and reloads."""

    def __init__(self, dependencies: RouteDependencies) -> None:
        self._engine = dependencies.engine

    def endpoints(self) -> list[Endpoint[Any]]:
        """The declared routes."""
        return [
            Endpoint(
                method="POST",
                path="/admin/snapshot",
                summary="Write everything that is served as a new bundle",
                handler=self.snapshot,
                scope="admin",
                body=SnapshotBody,
                body_required=False,
                answer=BundleAnswer,
                refusals=(409, 503),
            ),
            Endpoint(
                method="DELETE",
                path="/admin/snapshot",
                summary="Give up the snapshot that is being written",
                handler=self.cancel_snapshot,
                scope="admin",
                answer=CancelAnswer,
                refusals=(503,),
            ),
            Endpoint(
                method="POST",
                path="/admin/reload",
                summary="Serve another bundle from now on",
                handler=self.reload,
                scope="admin",
                body=ReloadBody,
                answer=BundleAnswer,
                refusals=(409, 503),
            ),
        ]

    async def snapshot(self, call: Call[SnapshotBody]) -> BundleAnswer:
        """Write a bundle; the answer comes when it is complete on disk."""
        name, version = await self._engine.snapshot(call.input.bundle)
        return {"bundle": name, "version": version}

    async def cancel_snapshot(self, _call: Call[None]) -> CancelAnswer:
        """End the child that writes a snapshot; its request is answered with 409."""
        return {"bundle": await self._engine.cancel_snapshot()}

    async def reload(self, call: Call[ReloadBody]) -> BundleAnswer:
        """Open, verify and warm up a bundle, then serve it in place of the present one."""
        name, version = await self._engine.reload(
            call.input.bundle, other_data=call.input.other_data
        )
        return {"bundle": name, "version": version}
