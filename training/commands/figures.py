"""Metrics of a result, formatted for the output of commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SHOWN = ("P@1", "P@5", "R@100", "PSP@5")


def figures(metrics: Mapping[str, float], names: Sequence[str] = SHOWN) -> str:
    """Format metrics: "P@1 59.19, P@5 26.65"."""
    return ", ".join(f"{name} {metrics[name]:.2f}" for name in names)
