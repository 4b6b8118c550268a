"""Limits of control groups (v1 and v2, with made-up files) bound the memory of `fit`.

`tests/unit/service/core/processes/test_processes.py` tests how groups and limits are found.
"""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from training.fitting.facts import free_bytes

MACHINE = 100_000
V2 = ("sys/fs/cgroup{}/memory.max", "sys/fs/cgroup{}/memory.current", "sys/fs/cgroup{}/memory.stat")
V1 = tuple(
    f"sys/fs/cgroup/memory{{}}/memory.{name}"
    for name in ("limit_in_bytes", "usage_in_bytes", "stat")
)
TWO, ONE = "0::{}\n", "5:devices:/x\n4:cpu,memory:{}\n0::/\n"


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(available=MACHINE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def group(names: tuple[str, ...], path: str, *texts: str) -> dict[str, str]:
    """Return the files of a group: its limit, its usage, and statistics."""
    return {name.format(path): text for name, text in zip(names, texts, strict=False)}


CASES = {
    "v2": (TWO.format("/"), group(V2, "", "9000\n", "2000\n"), 7_000),
    "too much used": (TWO.format("/"), group(V2, "", "9000", "9500"), 0),
    "file cache is given back": (
        TWO.format("/"),
        group(V2, "", "9000", "8000", "anon 5\ninactive_file 3000\nslab 1\n"),
        4_000,
    ),
    "a group above has the limit": (
        TWO.format("/pod/box"),
        group(V2, "/pod/box", "max", "10") | group(V2, "/pod", "5000", "1000"),
        4_000,
    ),
    "v1 file cache": (
        ONE.format("/box"),
        group(V1, "/box", "6000", "1000", "inactive_file 1\ntotal_inactive_file 500\n"),
        5_500,
    ),
    "not a number": (TWO.format("/"), group(V2, "", "much", "2000"), MACHINE),
}


@pytest.mark.parametrize(("groups", "files", "free"), CASES.values(), ids=CASES)
def test_the_smaller_of_machine_and_group(
    groups: str, files: dict[str, str], free: int, tmp_path: Path
) -> None:
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert free_bytes(tmp_path) == free


def test_the_groups_of_this_process() -> None:
    assert 0 <= free_bytes() <= MACHINE


def test_with_a_gpu_it_is_that_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (7_000, 80_000))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda: 3_000)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda: 1_000)
    assert free_bytes() == 9_000, "torch holds 2,000 bytes that nothing uses"
