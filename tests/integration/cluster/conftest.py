"""Tests here start a Ray cluster on this machine, in the processes that they test."""

import os
from pathlib import Path

import pytest

from tests.support.cluster_here import need_ray

SECONDS = 300  # for a command on a cluster, which takes half a minute on an idle machine
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the workers of a cluster import the tests' modules; skip tests without Ray."""
    need_ray()
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{before}" if before else str(ROOT))
