"""Many texts -> unit vectors by a torch encoder, in buckets of similar length.

Shapes: n texts, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from service.core.types import Floats, Role
from training.encoder import TorchEncoder
from training.pooled import PooledEncoder
from training.tokens import buckets, by_length, padded, tokenize

_BUDGET = 8_192  # tokens of one call, padding included


def encode_texts(encoder: TorchEncoder, texts: Sequence[str], *, role: Role) -> Floats:
    """Unit vectors [n, d] in fp32, on the encoder's device."""
    table = tokenize(
        encoder.tokenizer, texts, prompt=encoder.prompts[role], max_tokens=encoder.max_tokens
    )
    pooled = PooledEncoder(encoder.model).eval()
    order = by_length(table, np.arange(len(texts)))
    vectors = np.empty((len(texts), encoder.dimension), np.float32)
    padding = int(encoder.tokenizer.pad_token_id or 0)
    device = next(encoder.model.parameters()).device
    with torch.inference_mode():
        for cut in buckets(table.lengths[order], budget=_BUDGET):
            inputs = padded(table, order[cut], padding=padding, device=device)
            vectors[order[cut]] = pooled(**inputs).float().cpu().numpy()
    return vectors
