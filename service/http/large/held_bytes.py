"""The bytes of large bodies, streams and unread answers, bounded over all requests of a worker.

Each of these has a limit of its own, but hundreds of clients may come at once, and a client that
never reads leaves its answer in memory for `idle_seconds`. What is small is not counted: it is
bounded by the number of connections.
"""

from __future__ import annotations

from threading import Lock

from prometheus_client import Gauge

from service.core.errors import TooManyBytes

RETRY_SECONDS = 5


class HeldBytes:
    """Counts what all requests hold; for the event loop and the thread beside it."""

    def __init__(self, limit: int, gauge: Gauge | None = None) -> None:
        """Let requests hold at most `limit` bytes together; `gauge` shows how many they do."""
        self.total = 0
        self.limit = limit
        self._gauge, self._lock = gauge, Lock()

    def hold(self) -> Hold:
        """Return the share of one request, which is empty as yet."""
        return Hold(self)

    def take(self, size: int) -> bool:
        """Count so many bytes more, unless that is too much."""
        with self._lock:
            if self.total + size > self.limit:
                return False
            self._count(size)
        return True

    def count(self, size: int) -> None:
        """Count so many bytes more or, where `size` is negative, less."""
        with self._lock:
            self._count(size)

    def _count(self, size: int) -> None:
        self.total += size
        if self._gauge is not None:
            self._gauge.set(self.total)


class Hold:
    """What one request holds; whoever made it releases it when the request is over."""

    __slots__ = ("_all", "size")

    def __init__(self, all_held: HeldBytes) -> None:
        self._all = all_held
        self.size = 0

    @property
    def crowded(self) -> bool:
        """Whether all requests together hold as much as they may."""
        return self._all.total >= self._all.limit

    def take(self, size: int) -> bool:
        """Hold so many bytes more, unless all requests together hold too much."""
        taken = self._all.take(size)
        if taken:
            self.size += size
        return taken

    def add(self, size: int) -> None:
        """Hold so many bytes more; raises `TooManyBytes` where that is too much."""
        if not self.take(size):
            raise self.refusal()

    def refusal(self) -> TooManyBytes:
        """Return the error of a request that would exceed the limit."""
        return TooManyBytes(
            f"large requests and unread answers hold the {self._all.limit} bytes that they may"
            " take together; try again later",
            retry_after=RETRY_SECONDS,
        )

    def count(self, size: int) -> None:
        """Hold so many bytes more or less, whatever others hold."""
        self._all.count(size)
        self.size += size

    def become(self, size: int, *, must: bool = False) -> None:
        """Hold `size` bytes in place of those held so far; raises as `add`, unless it `must` be."""
        if must or size <= self.size:
            self.count(size - self.size)
        else:
            self.add(size - self.size)

    def release(self) -> None:
        """Hold nothing any more."""
        if self.size:
            self.count(-self.size)
