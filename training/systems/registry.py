"""The table of systems; builds the system that a recipe names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from service.core.config import parse
from service.core.errors import InvalidConfig
from training.systems.system import System, Task

SYSTEMS = {
    "rae": "training.systems.rae",
    "dual-encoder": "training.systems.dual_encoder",
    "ngame": "training.systems.ngame",
    "ngame-classifiers": "training.systems.ngame_classifiers",
    "dexa": "training.systems.dexa",
    "oak": "training.systems.oak.system",
    "siamese-xml": "training.systems.siamese_xml",
    "one-versus-all": "training.systems.one_versus_all",
    "irene": "training.systems.irene.system",
    "supcon-de": "training.systems.supcon_de",
    "unidec": "training.systems.unidec",
}


def reads_items(table: Mapping[str, Any]) -> bool:
    """Whether the system of a recipe's `[system]` table reads the data's metadata items."""
    return table.get("name") == "oak"


def build_system(table: Mapping[str, Any], task: Task, *, source: str) -> System:
    """Build the system of a recipe's `[system]` table; `source` is the recipe's name.

    Raises `InvalidConfig` naming the key and the allowed values.
    """
    settings = dict(table)
    name = settings.pop("name", None)
    if name not in SYSTEMS:
        raise InvalidConfig(f"{source}: system.name must be one of {', '.join(SYSTEMS)}")
    module = import_module(SYSTEMS[name])
    parsed = parse(module.Settings, settings, source=f"{source}: system")
    system: System = module.build(parsed, task)
    return system
