"""POST /instances: queries with the labels that were clicked for them, learned without training."""

from __future__ import annotations

from typing import Any

from service.core.types import NewInstance
from service.engine.writing.operations import PutInstances
from service.http.answers import InstancesAnswer
from service.http.endpoint import Call, Endpoint
from service.http.request_models.instances import InstancesBody
from service.http.routes.dependencies import RouteDependencies


class InstanceRoutes:
    """Learns clicks."""

    def __init__(self, dependencies: RouteDependencies) -> None:
        self._engine, self._models = dependencies.engine, dependencies.models
        self._side_thread = dependencies.side_thread

    def endpoints(self) -> list[Endpoint[Any]]:
        """The declared routes."""
        return [
            Endpoint(
                method="POST",
                path="/instances",
                summary="Learn which labels queries were clicked for",
                handler=self.put_instances,
                scope="write",
                body=self._models.instances,
                idempotent=True,
                answer=InstancesAnswer,
                refusals=(429, 503, 504, 507),
            )
        ]

    async def put_instances(self, call: Call[InstancesBody]) -> InstancesAnswer:
        """Write all instances of a request, or none."""
        instances = await self._instances(call)
        written = await self._engine.write(
            PutInstances(instances=instances), request=call.idempotency
        )
        return {"version": written.version, "accepted": written.accepted}

    async def _instances(self, call: Call[InstancesBody]) -> tuple[NewInstance, ...]:
        """The instances; those of a large body have many labels, which takes long."""

        def instances() -> tuple[NewInstance, ...]:
            return tuple(body.to_instance() for body in call.input.instances)

        return await self._side_thread.run(instances) if call.hold.size else instances()
