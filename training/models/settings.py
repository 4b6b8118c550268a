"""Settings of encoder and n-grams: the tables `[encoder]` and `[ngrams]` of a recipe.

They are apart from the models so that a recipe can be read without torch.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Count, Natural, Positive, Share


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EncoderSettings:
    """`name` as `training.encoder.load_encoder` takes it; prompts default to the model's own.

    `dropout` in place of the model's own, where it is given. A `frozen` transformer's vectors are
    made once; n-grams and a system's own parameters learn beside them. `stage_one` is a recipe that
    is trained first, and whose encoder is taken in place of `name`.
    """

    name: str
    stage_one: str | None = None
    query_tokens: Count = 32
    label_tokens: Count = 32
    query_prompt: str | None = None
    label_prompt: str | None = None
    dropout: Share | None = None
    frozen: bool = False


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NgramSettings:
    """A table of `buckets` vectors (0: none) for n-grams of `shortest` to `longest` characters.

    `share` is the length of what they add to the transformer's unit vector before training, see
    `training.models.ngrams`; `learning_rate` is theirs alone, for a table learns at other rates. A
    text loses each n-gram with the chance `dropout` while it trains. `frozen` keeps a checkpoint's
    table as it is, where the transformer is frozen, too.
    """

    buckets: Natural = 0
    shortest: Count = 3
    longest: Annotated[Count, Field(validate_default=True)] = 5
    share: Positive = 0.7
    learning_rate: Positive = 3e-3
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    frozen: bool = False

    @field_validator("longest")
    @classmethod
    def _at_least_the_shortest(cls, longest: int, others: ValidationInfo) -> int:
        if longest < others.data.get("shortest", longest):
            raise ValueError("must be at least `shortest`")
        return longest
