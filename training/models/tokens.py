"""Tokenized texts, and the buckets of similar length in which they are encoded.

Texts are tokenized once. A bucket holds as many texts of similar length as fit a budget of tokens,
which saves padding.

Shapes: n texts, t tokens of the longest text of a bucket, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.core.types import Rows

TOKENIZED_TEXTS = 65_536  # per call of the tokenizer


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenTable:
    """Token ids of many texts in one array: text i is ids[ends[i] : ends[i + 1]]."""

    ids: NDArray[np.int32]
    ends: NDArray[np.int64]  # [n + 1]

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each text, [n]."""
        return np.diff(self.ends)

    def of(self, text: int) -> NDArray[np.int32]:
        """Return the token ids of one text."""
        return self.ids[self.ends[text] : self.ends[text + 1]]


def tokenize(tokenizer: Any, texts: Sequence[str], *, prompt: str, max_tokens: int) -> TokenTable:
    """Tokenize `prompt` + text for each text, truncated to `max_tokens`."""
    pieces: list[NDArray[np.int32]] = []
    for start in range(0, len(texts), TOKENIZED_TEXTS):
        chunk = [prompt + text for text in texts[start : start + TOKENIZED_TEXTS]]
        encoded = tokenizer(
            chunk, truncation=True, max_length=max_tokens, return_attention_mask=False
        )
        pieces += [np.array(ids, np.int32) for ids in encoded["input_ids"]]
    return _table(pieces, np.array([len(piece) for piece in pieces], np.int64))


def _table(pieces: Sequence[NDArray[np.int32]], lengths: NDArray[np.int64]) -> TokenTable:
    return TokenTable(
        ids=np.concatenate([np.zeros(0, np.int32), *pieces]),
        ends=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
    )


def concatenate(tables: Sequence[TokenTable]) -> TokenTable:
    """Concatenate tables."""
    return _table([table.ids for table in tables], np.concatenate([t.lengths for t in tables]))


def by_length(table: TokenTable, texts: Rows) -> Rows:
    """Return indices into `texts` that sort them by length, the shortest first."""
    return np.argsort(table.lengths[texts], kind="stable")


def buckets(lengths: NDArray[np.int64], *, budget: int) -> Iterator[slice]:
    """Split texts of ascending `lengths` into slices whose padded tokens fit `budget`."""
    start = 0
    for stop in range(1, len(lengths) + 1):
        if stop == len(lengths) or (stop + 1 - start) * lengths[stop] > budget:
            yield slice(start, stop)
            start = stop


def padded(table: TokenTable, texts: Rows, *, padding: int, device: Any) -> dict[str, Tensor]:
    """Return the encoder's inputs for a bucket: input_ids and attention_mask, [n, t] each."""
    lengths = table.lengths[texts]
    width = int(lengths.max())
    ids = np.full((len(texts), width), padding, np.int64)
    mask = np.arange(width) < lengths[:, None]
    ids[mask] = np.concatenate([table.of(text) for text in texts.tolist()])
    return {
        "input_ids": torch.from_numpy(ids).to(device),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)).to(device),
    }
