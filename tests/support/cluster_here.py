"""Whether Ray is here, and a cluster without it.

The latter runs calls one after the other in this process, the last one first.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from service.core.processes.ray_cluster import Cluster


def need_ray() -> None:
    """Skip the test without Ray; under CI it fails."""
    if find_spec("ray") is None:
        reason = "the extra `cluster` is not installed"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)


class ClusterHere(Cluster):
    """Counts its calls, and ends after `most` of them."""

    def __init__(self, most: int | None = None) -> None:
        self.calls, self._most = 0, most

    def results(
        self, function: Callable[..., Any], calls: Iterable[Sequence[Any]], *, cores: int = 1
    ) -> Iterator[Any]:
        for call in reversed(list(calls)):
            if self.calls == self._most:
                raise KeyboardInterrupt
            self.calls += 1
            yield function(*call)
