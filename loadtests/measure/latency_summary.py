"""Percentiles and maximum of many latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Percentiles in milliseconds over `count` requests."""

    count: int
    p50: float
    p99: float
    p999: float
    maximum: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Summary:
        """Summarise latencies given in seconds; `ValueError` if there are none."""
        if len(seconds) == 0:
            raise ValueError("no request was answered, so there is no latency to summarise")
        p50, p99, p999 = np.percentile(seconds, [50, 99, 99.9]) * 1000
        return cls(
            count=len(seconds),
            p50=float(p50),
            p99=float(p99),
            p999=float(p999),
            maximum=max(seconds) * 1000,
        )

    def __str__(self) -> str:
        """The text of a table cell."""
        return (
            f"p50 {self.p50:.2f} ms, p99 {self.p99:.2f} ms, p99.9 {self.p999:.2f} ms,"
            f" max {self.maximum:.1f} ms ({self.count:,} requests)"
        )

    def as_document(self) -> dict[str, float]:
        """The figures for JSON."""
        return asdict(self)
