"""An encoder graph run at few shapes, with inputs bound to a device's memory.

A GPU chooses kernels and allocates memory anew for each shape that it has not seen. So batches are
rounded up to fixed sizes (`BATCHES` texts, `LENGTHS` tokens), of which each has buffers of its own
that are filled again and again; rows that only fill a bucket are cut from the result. A text of n
tokens costs at most as much as one of 2 n, and small batches cost a GPU next to nothing.

Outputs are bound to the host's memory, where the cache keeps the vectors of queries. Besides,
onnxruntime has no kernel for `LpNormalization`, an encoder's last node, on a GPU: bound to a GPU's
memory, vectors would be copied three times.

Shapes: n texts, t tokens, d dimensions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from service.core.encoding.graph_inputs import GraphInputs, Tokens, graph_inputs
from service.core.types import Floats

BATCHES = (1, 2, 4, 8, 16, 32, 64)  # texts
LENGTHS = (8, 16, 32, 64, 128, 256, 512)  # tokens

Shape = tuple[int, int]  # texts and tokens


def bucket(size: int, buckets: Sequence[int]) -> int:
    """Return the smallest of ascending `buckets` that holds `size`.

    Raises `ValueError` for a size beyond the largest.
    """
    place = bisect_left(buckets, size)
    if place == len(buckets):
        raise ValueError(f"{size} is more than the largest bucket, {buckets[-1]}")
    return buckets[place]


def lengths_up_to(max_tokens: int) -> tuple[int, ...]:
    """Return the buckets of an encoder that cuts texts at `max_tokens`, which is the largest."""
    return (*(length for length in LENGTHS if length < max_tokens), max_tokens)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Buffers:
    """One shape's binding, and the values that it binds: inputs [n, t] each, output [n, d]."""

    binding: Any
    inputs: dict[str, Any]
    output: Any

    def fill(self, inputs: GraphInputs) -> None:
        for name, value in self.inputs.items():
            value.update_inplace(inputs[name])


class BucketedGraph:
    """One open graph; calls run one after the other, since they share the buffers and the GPU."""

    def __init__(self, session: Any, *, memory: str, dimension: int, max_tokens: int) -> None:
        """Use an onnxruntime session that reads its inputs from `memory`, a device's name there."""
        self._session, self._memory, self._dimension = session, memory, dimension
        self._lengths = lengths_up_to(max_tokens)
        self._buffers: dict[Shape, _Buffers] = {}
        self._lock = Lock()

    @property
    def shapes(self) -> list[Shape]:
        """All shapes at which the graph runs, the largest first."""
        return [(texts, length) for texts in BATCHES[::-1] for length in self._lengths[::-1]]

    def warm_up(self) -> None:
        """Run each shape once; the largest first, so that its memory serves the others, too."""
        for texts, length in self.shapes:
            self([[0] * length] * texts)

    def __call__(self, tokens: Tokens) -> Floats:
        """Return unit vectors [n, d] of at most `BATCHES[-1]` texts of at most `max_tokens`."""
        longest = max(len(ids) for ids in tokens)
        shape = bucket(len(tokens), BATCHES), bucket(longest, self._lengths)
        inputs = graph_inputs(tokens, shape)
        with self._lock:
            buffers = self._buffers.get(shape)
            if buffers is None:
                buffers = self._buffers[shape] = self._bound(shape)
            buffers.fill(inputs)
            self._session.run_with_iobinding(buffers.binding)
            vectors: Floats = np.array(buffers.output.numpy()[: len(tokens)], np.float32)
        return vectors

    def _bound(self, shape: Shape) -> _Buffers:
        """Allocate the buffers of a shape and bind them."""
        from onnxruntime import OrtValue

        binding = self._session.io_binding()
        inputs = {
            name: OrtValue.ortvalue_from_shape_and_type(shape, np.int64, self._memory, 0)
            for name in ("input_ids", "attention_mask")
        }
        output = OrtValue.ortvalue_from_shape_and_type(
            (shape[0], self._dimension), np.float32, "cpu", 0
        )
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(self._session.get_outputs()[0].name, output)
        return _Buffers(binding=binding, inputs=inputs, output=output)
