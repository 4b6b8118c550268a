"""The routes: each one's input, action and answer.

To add a route:
1. `request_models.py`: the model of its body or query string; `answers.py`: the type of its answer.
2. In a module here: a handler, which takes a `Call` and returns the answer, and an `Endpoint` in
   the list of `endpoints`. The `Endpoint` determines validation, API keys, /docs and the metrics
   of requests. Add a new module to `build_endpoints`.
3. A new error: a row in the table of `problems.py`, and its status in the endpoint's `refusals`.
4. Add the route with its statuses to `tests/contract/test_openapi.py`.
"""

from __future__ import annotations

from typing import Any

from service.http.endpoint import Endpoint
from service.http.routes.items import ItemRoutes
from service.http.routes.labels import LabelRoutes
from service.http.routes.operations import OperationRoutes
from service.http.routes.predictions import PredictRoutes
from service.http.routes.rules import RuleRoutes


def build_endpoints(**parts: Any) -> list[Endpoint[Any]]:
    """Return all routes of the HTTP contract; `parts` are the fields of `Routes`."""
    resources = (PredictRoutes, LabelRoutes, RuleRoutes, ItemRoutes, OperationRoutes)
    return [endpoint for resource in resources for endpoint in resource(**parts).endpoints()]
