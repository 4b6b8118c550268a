"""Tests here start a Ray cluster on this machine, in the processes that they test."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

SECONDS = 300  # for a command on a cluster, which takes half a minute on an idle machine
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the workers of a cluster import the tests' modules; skip tests without Ray."""
    if find_spec("ray") is None:
        reason = "the extra `cluster` is not installed"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{before}" if before else str(ROOT))
