"""The inputs of an encoder graph: token ids and a mask, padded to one shape.

Shapes: n texts, t tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Tokens = list[list[int]]
GraphInputs = dict[str, NDArray[np.int64]]  # by name, [n, t] each


def graph_inputs(tokens: Tokens, shape: tuple[int, int] | None = None) -> GraphInputs:
    """Return the inputs [n, t], padded to the longest text, or to a larger `shape`.

    A row beyond the texts holds one token: the mean over none would divide by zero.
    """
    texts, length = shape or (len(tokens), max(len(ids) for ids in tokens))
    input_ids = np.zeros((texts, length), np.int64)
    attention_mask = np.zeros_like(input_ids)
    attention_mask[len(tokens) :, 0] = 1
    for row, ids in enumerate(tokens):
        input_ids[row, : len(ids)] = ids
        attention_mask[row, : len(ids)] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}
