"""UniDEC's two heads on one encoder (section 4.1): a vector for texts, a vector for classifiers.

    D(t) = normalize(dropout(tanh(linear(f(t)))))      compared with D of a label's text
    C(t) = dropout(linear(f(t)))                       compared with a label's classifier Psi_l

with f(t) the encoder's unit vector. The index holds the concatenation of the paper's section 4.4,
with a share s that is chosen on held-out rows (in the paper both halves weigh the same):

    e(t) = [sqrt(s) D(t); sqrt(1 - s) normalize(C(t))],    <e(x), e(z)> = s <D, D> + (1 - s) <C, C>

So a text has one unit vector, as with any other encoder. In a label's key Psi_l replaces C; a label
without clicks keeps C of its text.

Shapes: n texts, d dimensions of f, e of D, c of C.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from service.core.errors import InvalidInput
from service.core.types import Floats
from training.models.ngrams import SENTENCE_EMBEDDING, SavedModule
from training.models.settings import HeadSettings


class TwoHeads(SavedModule):
    """The last module of a sentence-transformers model: replaces f(t) by e(t).

    In training with `apart`, it returns [D; C] without normalizing C, as UniDEC's loss needs it.
    """

    config_keys = ("inputs", "encoder", "classifier", "activation", "dropout", "shared")

    def __init__(
        self,
        *,
        inputs: int,
        encoder: int,
        classifier: int,
        activation: str = "tanh",
        dropout: float = 0.0,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.inputs, self.encoder, self.classifier = inputs, encoder, classifier
        self.activation, self.dropout, self.shared = activation, dropout, shared
        self.to_encoder = nn.Linear(inputs, encoder)
        self.to_classifier = self.to_encoder if shared else nn.Linear(inputs, classifier)
        self.register_buffer("share", torch.tensor(0.5))
        self.apart = False

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Replace f(t), the feature `sentence_embedding` [n, d], by e(t) [n, e + c]."""
        inputs = normalize(features[SENTENCE_EMBEDDING].float(), dim=-1)  # [n, d]
        projected = self.to_encoder(inputs)  # [n, e]
        encoded = torch.tanh(projected) if self.activation == "tanh" else projected
        encoded = normalize(self._dropped(encoded), dim=-1)
        classified = self._dropped(projected if self.shared else self.to_classifier(inputs))
        if not (self.training and self.apart):
            encoded = torch.sqrt(self.share) * encoded
            classified = torch.sqrt(1.0 - self.share) * normalize(classified, dim=-1)
        return {**features, SENTENCE_EMBEDDING: torch.cat([encoded, classified], dim=-1)}

    def _dropped(self, vectors: Tensor) -> Tensor:
        return nn.functional.dropout(vectors, self.dropout, self.training)

    def get_embedding_dimension(self) -> int:
        """Return e + c; sentence-transformers looks for a method of this name."""
        return self.encoder + self.classifier


def heads_of(model: nn.Module) -> TwoHeads | None:
    """Return the two heads of a model, None if it has none."""
    return next((part for part in model.modules() if isinstance(part, TwoHeads)), None)


def require_heads(model: nn.Module, name: str) -> TwoHeads:
    """Return the two heads of the model `name`; raises `InvalidInput` if it has none."""
    heads = heads_of(model)
    if heads is None:
        raise InvalidInput(f"{name} has no two heads: a share is that of an encoder as UniDEC's")
    return heads


def untrained_heads(vectors: Floats, settings: HeadSettings) -> TwoHeads:
    """Return heads that preserve the inner products of `vectors` [n, d] as well as they can.

    Each head projects onto the vectors' main directions (all of them if e or c is d), so training
    starts from what the encoder knows.
    """
    numbers = {key: value for key, value in asdict(settings).items() if key in TwoHeads.config_keys}
    heads = TwoHeads(inputs=vectors.shape[1], **numbers)
    with torch.no_grad():
        for linear in (heads.to_encoder, heads.to_classifier):
            linear.weight.copy_(main_directions(vectors, linear.out_features))
            linear.bias.zero_()
    return heads


def main_directions(vectors: Floats, count: int) -> Tensor:
    """Return an orthonormal basis [count, d] of the main directions of vectors [n, d]."""
    if count == vectors.shape[1]:
        return torch.eye(count)
    _, directions = np.linalg.eigh(vectors.T.astype(np.float64) @ vectors)  # ascending
    return torch.from_numpy(directions[:, ::-1][:, :count].T.astype(np.float32))


def with_share(vectors: Floats, share: float, *, encoder: int) -> Floats:
    """Return vectors [n, e + c] rescaled to the given share of D; `encoder` is e.

    A share of 0 or 1 makes one head zero, and it cannot be restored.
    """
    halves = (vectors[:, :encoder], vectors[:, encoder:])
    scaled = [
        np.sqrt(weight) * half / np.maximum(np.linalg.norm(half, axis=1, keepdims=True), 1e-12)
        for half, weight in zip(halves, (share, 1.0 - share), strict=True)
    ]
    joined: Floats = np.concatenate(scaled, axis=1).astype(np.float32)
    return joined
