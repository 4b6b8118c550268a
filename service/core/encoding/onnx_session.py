"""Opens ONNX graphs on the device that the settings name.

onnxruntime itself falls back to the processor where a GPU's libraries cannot be loaded, and says so
only in its log: a service that is then ten times slower than planned is worse than one that does
not start. So what a session really uses is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.core.errors import BundleAltered, DeviceUnavailable, MissingExtra
from service.core.types import DeviceName

INSTALL_GPU = (
    "in a new environment without onnxruntime and faiss-cpu, whose packages have the same names:"
    " pip install 'keymatch[gpu]'"
)


@dataclass(frozen=True, kw_only=True)
class OnnxDevice:
    """An execution provider of onnxruntime with its options, and the memory that it computes in."""

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
            "arena_extend_strategy": "kSameAsRequested",  # shapes are few, so nothing is to spare
        },
    ),
}


def require_provider(device: DeviceName) -> None:
    """Raise `DeviceUnavailable` where onnxruntime was built without the device."""
    onnxruntime, wanted = _onnxruntime(), ONNX_DEVICES[device].provider
    available = onnxruntime.get_available_providers()
    if wanted not in available:
        raise DeviceUnavailable(
            f'device = "{device}" needs onnxruntime with its {wanted}, but version'
            f" {onnxruntime.__version__} here has only {', '.join(available)}; {INSTALL_GPU}"
        )


def open_session(path: Path, device: DeviceName = "cpu") -> Any:
    """Return an ONNX graph on a device; on the processor it runs on one thread per call.

    Raises `BundleAltered` if the file is not a graph that onnxruntime can load, and
    `DeviceUnavailable` if the device cannot run it.
    """
    onnxruntime, used = _onnxruntime(), ONNX_DEVICES[device]
    require_provider(device)
    if used.memory == "cuda":
        onnxruntime.preload_dlls()  # CUDA's libraries from pip lie where no loader looks for them
    options = onnxruntime.SessionOptions()
    # Cores are used by concurrent calls, one thread each. Two threads per call made p99 five to
    # ten times worse, at an equal median.
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
