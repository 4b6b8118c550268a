"""Limits of control groups (v1 and v2, with made-up files) bound the memory of `fit`.

`tests/unit/service/core/processes/test_processes.py` tests how groups and limits are found.
"""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from training.fitting.facts import free_bytes

MACHINE = 100_000
V1 = "memory/box/memory."
# The groups of the process, files below /sys/fs/cgroup, and the free bytes.
CASES = {
    "too much used": ("0::/", {"memory.max": "9000", "memory.current": "9500"}, 0),
    "file cache is given back": (
        "0::/",
        {"memory.max": "9000", "memory.current": "8000", "memory.stat": "anon 5\ninactive_file 30"},
        1_030,
    ),
    "a group above has the limit": (
        "0::/pod/box",
        {"pod/box/memory.max": "max", "pod/memory.max": "5000", "pod/memory.current": "1000"},
        4_000,
    ),
    "v1 file cache": (
        "5:devices:/x\n4:cpu,memory:/box\n0::/",
        {
            f"{V1}limit_in_bytes": "6000",
            f"{V1}usage_in_bytes": "1000",
            f"{V1}stat": "inactive_file 1\ntotal_inactive_file 500",
        },
        5_500,
    ),
    "not a number": ("0::/", {"memory.max": "much", "memory.current": "2000"}, MACHINE),
}


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(available=MACHINE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.parametrize(("groups", "files", "free"), CASES.values(), ids=CASES)
def test_the_smaller_of_machine_and_group(
    groups: str, files: dict[str, str], free: int, tmp_path: Path
) -> None:
    limits = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": groups, **limits}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert free_bytes(tmp_path) == free
    assert 0 <= free_bytes() <= MACHINE, "the groups of this process"


def test_with_a_gpu_it_is_that_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (7_000, 80_000))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda: 3_000)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda: 1_000)
    assert free_bytes() == 9_000, "torch holds 2,000 bytes that nothing uses"
