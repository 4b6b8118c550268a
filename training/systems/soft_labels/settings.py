"""`[soft_labels]` of a recipe: the teacher that says which further labels may fit a row.

They are apart from the system so that a recipe can be read without torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Count, Natural, Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SoftLabelSettings:
    """`teacher` is the folder of a finished run on the same data; None: there are no soft labels.

    Only labels with at most `most_rows` training rows get any, and each row the `top` ones that the
    teacher scores highest. A score is the similarity of row and label (`source = "instances"`) or
    of the label and the row's nearest positive (`"labels"`). `temperature` turns scores into
    probabilities (`training.systems.soft_labels.teacher`). Of each row in a batch `sampled` soft
    labels join the pool; with `batch.pool = "all"` all are there. Their loss weighs `weight`.
    """

    teacher: str | None = None
    source: Literal["instances", "labels"] = "instances"
    top: Count = 10
    sampled: Natural = 1
    most_rows: Natural = 10
    weight: Annotated[float, Field(ge=0.0)] = 0.5
    temperature: Positive = 0.1
