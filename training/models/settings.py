"""Settings of the encoder, of its parts, and of the oracle that guides it.

These are the tables `[encoder]`, `[lora]`, `[ngrams]`, `[heads]` and `[guidance]` of a recipe. They
have a module of their own so that a recipe can be read without torch.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Count, Natural, Positive, Share

Weight = Annotated[float, Field(ge=0.0)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EncoderSettings:
    """The encoder that is trained, and how much of a text it reads.

    `name` is passed to `load_encoder`. Prompts and `dropout` default to the model's. A `frozen`
    transformer encodes each text once; only n-grams and the system's head learn. `stage_one` names
    a recipe that is trained first; its encoder replaces `name`. `pooling` turns the tokens' vectors
    into one: their mean, the first token's (cls), or the last token's. In a causal language model
    only the last one has read the whole text. The default is the setting of a
    sentence-transformers folder, or the mean for a plain model.
    """

    name: str
    stage_one: str | None = None
    query_tokens: Count = 32
    label_tokens: Count = 32
    query_prompt: str | None = None
    label_prompt: str | None = None
    dropout: Share | None = None
    frozen: bool = False
    pooling: Literal["mean", "cls", "last-token"] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LoraSettings:
    """Low-rank adapters on the transformer (`training.models.lora`); with a `rank` of 0, none.

    `alpha` / `rank` scales what adapters add. Each of their inputs is dropped with the probability
    `dropout`. `modules` names the linear layers that get an adapter, by default all. The learning
    rate is `optimizer.learning_rate`.
    """

    rank: Natural = 0
    alpha: Positive = 32.0
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NgramSettings:
    """A table of `buckets` vectors (0: none) for n-grams of `shortest` to `longest` characters.

    `share` is the length, before training, of the vector that n-grams add to the transformer's unit
    vector (`training.models.ngrams`). `learning_rate` is that of the table. In training each
    n-gram of a text is dropped with the probability `dropout`. `frozen` leaves a checkpoint's table
    untrained; it requires `encoder.frozen`.
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


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HeadSettings:
    """UniDEC's two heads (`training.models.two_heads`): dimensions of D and of C, 0 for none.

    `activation` is applied to D only. With `shared`, both heads use one projection. `learning_rate`
    is that of the projections.
    """

    encoder: Natural = 0
    classifier: Natural = 0
    activation: Literal["tanh", "none"] = "tanh"
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    shared: bool = False
    learning_rate: Positive = 2e-4

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.encoder == 0) != (self.classifier == 0):
            raise ValueError("give encoder and classifier, or neither")
        if self.shared and self.encoder != self.classifier:
            raise ValueError("shared heads must have the same number of dimensions")
        return self


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
