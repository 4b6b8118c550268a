"""Options that several commands share."""

from __future__ import annotations

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
