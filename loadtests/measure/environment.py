"""What a figure depends on: processor, libraries, load. Nothing here names a machine."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "avx_vnni")
_LIBRARIES = (
    "keymatch", "numpy", "onnxruntime", "onnxruntime-gpu", "faiss-cpu", "faiss-gpu", "fastapi",
    "uvicorn", "pydantic",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Processor, memory, kernel, library versions and load average, for a report."""
    processor = _processor()
    flags = set(processor.get("flags", "").split())
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": processor.get("model name", platform.machine()),
        "flags": [flag for flag in _FLAGS if flag in flags],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "libraries": _versions(),
        "load_average": list(os.getloadavg()),
    }


def _versions() -> dict[str, str]:
    """The version of each library that is installed."""
    versions = {}
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _processor() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text().split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
