"""The routes: parse, call the engine, shape the answer. One file a resource."""

from __future__ import annotations

from fastapi import APIRouter

from service.routes import admin, instances, labels, operations, predict
from service.routes.parts import Parts


def build_router(parts: Parts) -> APIRouter:
    """All routes over one engine."""
    router = APIRouter()
    for resource in (predict, labels, instances, admin, operations):
        router.include_router(resource.build_router(parts))
    return router
