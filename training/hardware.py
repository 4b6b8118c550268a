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
    """Return a training run's device, cores, library versions, processes and precision."""
    return {
        **machine(libraries=versions(*LIBRARIES), device=gpu_name()),
        "processes": accelerator.num_processes,
        "precision": accelerator.mixed_precision,
    }


def machine(*, libraries: Mapping[str, str], device: str | None = None) -> dict[str, Any]:
    """Return the device (by default the CPU), the usable cores and the library versions."""
    return {
        "device": device or processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "libraries": dict(libraries),
    }


def gpu_name() -> str | None:
    """Return the name of the GPU that torch uses; None if it uses the CPU."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def versions(*names: str) -> dict[str, str]:
    """Return the installed version of each package."""
    return {name: version(name) for name in names}


def processor() -> str:
    """Return the CPU's model name, or its architecture if the system does not tell."""
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
