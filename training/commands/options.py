"""Options that several commands share, and the metrics that they print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from cyclopts import Parameter

from training.models.precision import Precision

FLAT = Parameter(name="*", negative=())  # a group's options are named after its fields
MANY = Parameter(consume_multiple=True, negative=())  # one option, several values: --only a b c
ScoringPrecision = Annotated[
    Precision,
    Parameter(
        help="Arithmetic of the encoder in scoring: auto is the fastest on this hardware, fp32"
        " gives the same results on any hardware."
    ),
]
SHOWN = ("P@1", "P@5", "R@100", "PSP@5")


def figures(metrics: Mapping[str, float], names: Sequence[str] = SHOWN) -> str:
    """Format metrics: "P@1 59.19, P@5 26.65"."""
    return ", ".join(f"{name} {metrics[name]:.2f}" for name in names)
