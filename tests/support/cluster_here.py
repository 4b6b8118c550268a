"""A cluster without Ray: calls run one after the other in this process, the last one first."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from service.core.processes.ray_cluster import Cluster


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
