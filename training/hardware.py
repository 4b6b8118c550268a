"""The hardware and the library versions that a measurement was taken with."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate import Accelerator

LIBRARIES = ("torch", "transformers", "sentence-transformers", "accelerate")


def hardware(accelerator: Accelerator) -> dict[str, Any]:
    """Of a training run: device, cores, library versions, processes and precision."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        **machine(libraries=versions(*LIBRARIES), device=gpu),
        "processes": accelerator.num_processes,
        "precision": accelerator.mixed_precision,
    }


def machine(*, libraries: Mapping[str, str], device: str | None = None) -> dict[str, Any]:
    """Device (the processor unless another is given), usable cores and library versions."""
    return {
        "device": device or processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "libraries": dict(libraries),
    }


def versions(*names: str) -> dict[str, str]:
    """The installed version of each package."""
    return {name: version(name) for name in names}


def processor() -> str:
    """The processor's model name, or its architecture where the system does not tell."""
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
