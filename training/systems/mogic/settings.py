"""`[guidance]` of a recipe: the oracle that guides a system's training, as MOGIC does.

The settings have a module of their own so that a recipe can be read without torch.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Count, Positive

Weight = Annotated[float, Field(ge=0.0)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GuidanceSettings:
    """`oracle` is the folder of a finished run on the same data, None for no guidance.

    `alpha` weighs MOGIC's alignment loss, whose triplets have `margin` and use the `hardest`
    negatives of each row, and `beta` its matching loss (section 3.3; the paper takes 0.1 for both
    and a margin of 0.3). `projection` maps the oracle's vectors to the system's dimensions: onto
    their main directions (pca, if the oracle has more dimensions), or by a matrix that is learned
    with the system (appendix F, Table 14), at `optimizer.head_learning_rate`. `own_loss` weighs
    the system's own loss; with 0 only the oracle's two losses remain (Table 5).
    """

    oracle: str | None = None
    alpha: Weight = 0.1
    beta: Weight = 0.1
    own_loss: Weight = 1.0
    margin: Positive = 0.3
    hardest: Count = 10
    projection: Literal["pca", "learned"] = "pca"

    @model_validator(mode="after")
    def _has_a_loss(self) -> Self:
        if not (self.own_loss or self.alpha or self.beta):
            raise ValueError("one of own_loss, alpha and beta must be above 0")
        if not self.own_loss and self.oracle is None:
            raise ValueError("own_loss = 0 needs an oracle: nothing else would be learned")
        return self
