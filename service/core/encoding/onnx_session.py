"""Opens ONNX graphs on the device of the settings; on a GPU, an encoder runs at a few fixed shapes.

If a GPU's libraries cannot be loaded, onnxruntime falls back to the CPU and only logs it. Such a
service would be ten times slower than planned, so each session's device is checked.

A GPU chooses kernels and allocates memory for each new shape. So batches are rounded up to fixed
sizes (`BATCHES` texts, `LENGTHS` tokens), each with its own buffers. Padding rows are cut from the
result. A text of n tokens costs at most as much as one of 2 n.

Outputs are bound to the host's memory, because the cache of query vectors is there. Also,
onnxruntime has no GPU kernel for `LpNormalization`, the last node of an encoder. If outputs were
bound to the GPU's memory, vectors would be copied three times.

Shapes: n texts, t tokens, d dimensions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.core.errors import BundleAltered, DeviceUnavailable, MissingExtra, install_command
from service.core.types import DeviceName, Floats

BATCHES = (1, 2, 4, 8, 16, 32, 64)  # texts
LENGTHS = (8, 16, 32, 64, 128, 256, 512)  # tokens
IN_A_NEW_ENVIRONMENT = (
    "in a new environment without onnxruntime and faiss-cpu, whose packages have the same names:"
)
Tokens = list[list[int]]
GraphInputs = dict[str, NDArray[np.int64]]  # by name, [n, t] each
Shape = tuple[int, int]  # texts and tokens


@dataclass(frozen=True, kw_only=True)
class OnnxDevice:
    """An execution provider of onnxruntime with its options, and the memory that it uses."""

    provider: str
    memory: str
    options: Mapping[str, str] = field(default_factory=dict)


ONNX_DEVICES: Mapping[DeviceName, OnnxDevice] = {
    "cpu": OnnxDevice(provider="CPUExecutionProvider", memory="cpu"),
    "cuda": OnnxDevice(
        provider="CUDAExecutionProvider",
        memory="cuda",
        options={
            "device_id": "0",
            # TF32 keeps 10 bits of each factor, too few for answers within the stated tolerance.
            "use_tf32": "0",
            "arena_extend_strategy": "kSameAsRequested",  # shapes are few: allocate no spare memory
        },
    ),
}


def require_provider(device: DeviceName) -> None:
    """Raise `DeviceUnavailable` if onnxruntime was built without support for the device."""
    onnxruntime, wanted = _onnxruntime(), ONNX_DEVICES[device].provider
    available = onnxruntime.get_available_providers()
    if wanted not in available:
        raise DeviceUnavailable(
            f'device = "{device}" needs onnxruntime with its {wanted}, but version'
            f" {onnxruntime.__version__} here has only {', '.join(available)};"
            f" {IN_A_NEW_ENVIRONMENT} {install_command('gpu')}"
        )


def open_session(path: Path, device: DeviceName = "cpu") -> Any:
    """Open an ONNX graph on a device. On the CPU, each call runs on one thread.

    Raises `BundleAltered` if the file is not a graph that onnxruntime can load, and
    `DeviceUnavailable` if the device cannot run it.
    """
    onnxruntime, used = _onnxruntime(), ONNX_DEVICES[device]
    require_provider(device)
    if used.memory == "cuda":
        onnxruntime.preload_dlls()  # the loader does not find CUDA's libraries from pip by itself
    options = onnxruntime.SessionOptions()
    # Concurrent calls use the cores, one thread each. With two threads per call, p99 was five to
    # ten times worse at an equal median.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=[(used.provider, dict(used.options))]
        )
    except Exception as error:  # onnxruntime's exceptions share no public base
        raise BundleAltered(f"{path} is not a graph that onnxruntime can load") from error
    if session.get_providers()[0] != used.provider:
        raise DeviceUnavailable(
            f'device = "{device}", but onnxruntime cannot start its {used.provider}: is there an'
            " NVIDIA GPU with a driver for CUDA 12, and does CUDA_VISIBLE_DEVICES show it?"
        )
    return session


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:  # pragma: no cover - needs an environment without onnxruntime
        raise MissingExtra("onnxruntime", extra="cpu") from error
    return onnxruntime


def graph_inputs(tokens: Tokens, shape: Shape | None = None) -> GraphInputs:
    """Return the inputs [n, t], padded to the longest text or to a larger `shape`.

    A padding row holds one token, because a mean of no tokens would divide by zero.
    """
    texts, length = shape or (len(tokens), max(len(ids) for ids in tokens))
    input_ids = np.zeros((texts, length), np.int64)
    attention_mask = np.zeros_like(input_ids)
    attention_mask[len(tokens) :, 0] = 1
    for row, ids in enumerate(tokens):
        input_ids[row, : len(ids)] = ids
        attention_mask[row, : len(ids)] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def bucket(size: int, buckets: Sequence[int]) -> int:
    """Return the smallest of the ascending `buckets` that is at least `size`."""
    return buckets[bisect_left(buckets, size)]


def lengths_up_to(max_tokens: int) -> tuple[int, ...]:
    """Return the length buckets up to `max_tokens`, the length to which the encoder cuts texts."""
    return (*(length for length in LENGTHS if length < max_tokens), max_tokens)


Buffers = tuple[Any, Mapping[str, Any], Any]  # onnxruntime's binding, inputs by name, output


class BucketedGraph:
    """An open graph. Calls run one after the other, because they share the buffers and the GPU."""

    def __init__(self, session: Any, *, memory: str, dimension: int, max_tokens: int) -> None:
        """Use an onnxruntime session that reads inputs from `memory` (a device's name there)."""
        self._session, self._memory, self._dimension = session, memory, dimension
        self._lengths = lengths_up_to(max_tokens)
        self._buffers: dict[Shape, Buffers] = {}
        self._lock = Lock()

    @property
    def shapes(self) -> list[Shape]:
        """All shapes at which the graph runs, the largest first."""
        return [(texts, length) for texts in BATCHES[::-1] for length in self._lengths[::-1]]

    def warm_up(self) -> None:
        """Run each shape once, the largest first, so that the others reuse its memory."""
        for texts, length in self.shapes:
            self([[0] * length] * texts)

    def __call__(self, tokens: Tokens) -> Floats:
        """Return unit vectors [n, d] of at most `BATCHES[-1]` texts of at most `max_tokens`."""
        longest = max(len(ids) for ids in tokens)
        shape = bucket(len(tokens), BATCHES), bucket(longest, self._lengths)
        inputs = graph_inputs(tokens, shape)
        with self._lock:
            if shape not in self._buffers:
                self._buffers[shape] = self._bound(shape)
            binding, bound, output = self._buffers[shape]
            for name, value in bound.items():
                value.update_inplace(inputs[name])
            self._session.run_with_iobinding(binding)
            vectors: Floats = np.array(output.numpy()[: len(tokens)], np.float32)
        return vectors

    def _bound(self, shape: Shape) -> Buffers:
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
        return binding, inputs, output
