"""The routes: parse, call the engine, shape the answer. One file a resource."""

from __future__ import annotations

from fastapi import APIRouter

from service.http.routes import admin, health, instances, labels, predict
from service.http.routes.dependencies import Parts


def build_routers(parts: Parts) -> list[APIRouter]:
    """All routes over one engine, a router for each resource."""
    resources = (predict, labels, instances, admin, health)
    return [resource.build_router(parts) for resource in resources]
