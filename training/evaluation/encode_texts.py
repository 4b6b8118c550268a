"""Encode many texts into unit vectors with a torch encoder, in buckets of similar length.

Shapes: n texts, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from service.core.types import Floats, Role, Rows
from training.checkpoints.label_keys import read_label_keys
from training.datasets.dataset import Dataset
from training.models.ngrams import SENTENCE_EMBEDDING
from training.models.pooled import pooled, split_at_additions
from training.models.precision import Precision, supported_precision
from training.models.tokens import TokenTable, buckets, by_length, padded, tokenize
from training.models.torch_encoder import TorchEncoder
from training.models.vector_cache import cache_of

_BUDGET = 8_192  # tokens per call, padding included


def encode_texts(
    encoder: TorchEncoder,
    texts: Sequence[str],
    *,
    role: Role,
    precision: Precision = "fp32",
    progress: Callable[[int], None] = lambda done: None,
) -> Floats:
    """Unit vectors [n, d] in fp32, computed in `precision`, on a GPU if there is one.

    `progress` receives the number of finished texts. Raises `InvalidConfig` for fp16 without a GPU.
    """
    if not len(texts):
        return np.empty((0, encoder.dimension), np.float32)
    table = tokenize(
        encoder.tokenizer, texts, prompt=encoder.prompts[role], max_tokens=encoder.max_tokens
    )
    padding = int(encoder.tokenizer.pad_token_id or 0)
    encode = partial(_encode, table=table, padding=padding, precision=precision)
    transformer, added = split_at_additions(encoder.model)
    cache = cache_of(transformer, precision=supported_precision(precision))
    if cache is None:
        return encode(encoder.model, progress=progress)
    vectors = cache.vectors(table, lambda rows: encode(transformer, rows=rows, progress=progress))
    return vectors if added is None else encode(added, vectors=vectors)


def _encode(
    modules: nn.Module,
    *,
    table: TokenTable,
    padding: int,
    precision: Precision,
    rows: Rows | None = None,
    vectors: Floats | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Floats:
    """Return unit vectors [k, d] of the texts `rows` [k] of a table, by default of all.

    If given, `vectors` [n, d'] are the transformer's outputs, and `modules` the layers after it.
    """
    rows = np.arange(len(table)) if rows is None else rows
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    modules = modules.eval().to(device)
    order = by_length(table, rows)
    pieces: list[Floats] = []
    with torch.inference_mode(), autocast(precision):
        for cut in buckets(table.lengths[rows[order]], budget=_BUDGET):
            texts = rows[order[cut]]
            features = padded(table, texts, padding=padding, device=device)
            if vectors is not None:
                features[SENTENCE_EMBEDDING] = torch.from_numpy(vectors[texts]).to(device)
            pieces.append(pooled(modules, features).float().cpu().numpy())
            progress(sum(map(len, pieces)))
    encoded = np.concatenate(pieces)  # [k, d], ordered by length, the shortest text first
    unsorted = np.empty_like(encoded)
    unsorted[order] = encoded
    return unsorted


def label_keys(encode: Callable[..., Floats], dataset: Dataset, *, folder: Path | None) -> Floats:
    """Z [L, d]: the label keys learned in a checkpoint's `folder`, otherwise the encoded labels.

    `encode` is `encode_texts` with its encoder filled in.
    """
    learned = read_label_keys(folder, labels=len(dataset.labels)) if folder is not None else None
    return encode(dataset.labels.texts, role=Role.LABEL) if learned is None else learned


def autocast(precision: Precision) -> AbstractContextManager[None]:
    """A context for arithmetic in fp32, bf16 or fp16; `auto` picks the fastest of the hardware."""
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[
        supported_precision(precision)
    ]
    if dtype is None:
        return nullcontext()
    context: AbstractContextManager[None] = torch.autocast(
        "cuda" if torch.cuda.is_available() else "cpu", dtype
    )
    return context
