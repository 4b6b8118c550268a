"""The routes, one module for each resource: what each takes, does and answers.

To add a route:
1. `request_models/`: the model of its body or query string; `answers.py`: the type of its answer.
2. In a module here: a handler, which takes a `Call` and returns the answer, and an `Endpoint` in
   the list of `endpoints`, which declares everything that clients see: validation, API keys, /docs
   and the metrics of requests follow from it. A new module is added to `build_endpoints`.
3. A new error: a row in the table of `problems.py`, and its status in the endpoint's `refusals`.
4. `tests/contract/test_openapi.py` lists every route with its statuses.

To add a metric: register it in `service/telemetry.py`, set it where the value is known, and list it
in the table of `service/README.md` and in `tests/contract/test_metrics.py`.
"""

from __future__ import annotations

from typing import Any

from service.http.endpoint import Endpoint
from service.http.routes.admin import AdminRoutes
from service.http.routes.dependencies import RouteDependencies
from service.http.routes.health import HealthRoutes
from service.http.routes.instances import InstanceRoutes
from service.http.routes.items import ItemRoutes
from service.http.routes.labels import LabelRoutes
from service.http.routes.predict import PredictRoutes


def build_endpoints(dependencies: RouteDependencies) -> list[Endpoint[Any]]:
    """All routes of the HTTP contract; the most frequent one is matched first."""
    writes = (LabelRoutes, InstanceRoutes, ItemRoutes)
    resources = (PredictRoutes, *writes, AdminRoutes, HealthRoutes)
    return [endpoint for resource in resources for endpoint in resource(dependencies).endpoints()]
