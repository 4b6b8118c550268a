"""Many texts -> unit vectors by a torch encoder, in buckets of similar length.

Shapes: n texts, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import nn

from service.core.types import Floats, Role
from training.checkpoints.label_keys import read_label_keys
from training.datasets.dataset import Dataset
from training.models.pooled import PooledEncoder
from training.models.precision import Precision, supported_precision
from training.models.tokens import buckets, by_length, padded, tokenize
from training.models.torch_encoder import TorchEncoder

_BUDGET = 8_192  # tokens of one call, padding included


def encode_texts(
    encoder: TorchEncoder,
    texts: Sequence[str],
    *,
    role: Role,
    precision: Precision = "fp32",
    progress: Callable[[int], None] = lambda done: None,
) -> Floats:
    """Unit vectors [n, d] in fp32, computed in `precision`, on a GPU where there is one.

    `progress` receives the number of finished texts. Raises `InvalidConfig` for fp16 without a GPU.
    """
    arithmetic = autocast(precision)
    table = tokenize(
        encoder.tokenizer, texts, prompt=encoder.prompts[role], max_tokens=encoder.max_tokens
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pooled: nn.Module = PooledEncoder(encoder.model).eval().to(device)
    order = by_length(table, np.arange(len(texts)))
    vectors = np.empty((len(texts), encoder.dimension), np.float32)
    padding, done = int(encoder.tokenizer.pad_token_id or 0), 0
    with torch.inference_mode(), arithmetic:
        for cut in buckets(table.lengths[order], budget=_BUDGET):
            inputs = padded(table, order[cut], padding=padding, device=device)
            vectors[order[cut]] = pooled(**inputs).float().cpu().numpy()
            done += len(order[cut])
            progress(done)
    return vectors


def label_keys(encode: Callable[..., Floats], dataset: Dataset, *, folder: Path | None) -> Floats:
    """Z [L, d]: the learned label keys in a checkpoint's `folder`, else the labels' encoded texts.

    `encode` is `encode_texts` with an encoder.
    """
    learned = read_label_keys(folder, labels=len(dataset.labels)) if folder is not None else None
    return encode(dataset.labels.texts, role=Role.LABEL) if learned is None else learned


def autocast(precision: Precision) -> AbstractContextManager[None]:
    """A context of arithmetic in fp32, bf16 or fp16; `auto` is the fastest of the hardware."""
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[
        supported_precision(precision)
    ]
    if dtype is None:
        return nullcontext()
    context: AbstractContextManager[None] = torch.autocast(
        "cuda" if torch.cuda.is_available() else "cpu", dtype
    )
    return context
