"""Limits of a process, its memory, and child processes of low priority."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from service.core.errors import SealError, SealLate
from service.core.processes.low_priority import LowPriorityChild, niceness_of
from service.core.processes.resources import SHARE_OF_MACHINE, available_cores, memory_limit

# Limits, read from the files of control groups (v1 and v2), here simulated -------------------

MACHINE = 100_000
MOST = int(SHARE_OF_MACHINE * MACHINE)
LIMIT_1 = "memory.limit_in_bytes"
QUOTA_1, PERIOD_1 = "cpu.cfs_quota_us", "cpu.cfs_period_us"
# /proc/self/cgroup, the files of limits below /sys/fs/cgroup, and the resulting limit.
MEMORY = {
    "version 2": ("0::/", {"memory.max": "9000"}, 9_000),
    "version 2, no limit": ("0::/", {"memory.max": "max"}, MOST),
    "more than there is": ("0::/", {"memory.max": "900000"}, MOST),
    "no file": ("0::/", {}, MOST),
    "the group above": ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "7000"}, 7_000),
    "the path of the host": ("0::/of/the/host", {"memory.max": "9000"}, 9_000),
    "version 1": ("5:devices:/x\n4:cpu,memory:/a\n0::/", {f"memory/a/{LIMIT_1}": "8000"}, 8_000),
    "version 1, no limit": ("4:memory:/", {f"memory/{LIMIT_1}": f"{2**63 - 4096}"}, MOST),
    "not Linux": (None, {}, MOST),
}
CORES = {
    "version 2, no quota": ("0::/", {"cpu.max": "max 100000"}, 8),
    "version 2": ("0::/", {"cpu.max": "400000 100000"}, 4),
    "one and a half": ("0::/", {"cpu.max": "150000 100000"}, 1),
    "half a core": ("0::/", {"cpu.max": "50000 100000"}, 1),
    "more than cores": ("0::/", {"cpu.max": "1600000 100000"}, 8),
    "the group above": ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2),
    "version 1": (
        "4:cpu,cpuacct:/a\n3:memory:/b",
        {f"cpu/a/{QUOTA_1}": "300000", f"cpu/a/{PERIOD_1}": "100000"},
        3,
    ),
    "version 1, no quota": ("4:cpu:/", {f"cpu/{QUOTA_1}": "-1", f"cpu/{PERIOD_1}": "100000"}, 8),
    "not Linux": (None, {}, 8),
}


@pytest.mark.parametrize(("groups", "files", "expected"), MEMORY.values(), ids=MEMORY)
def test_the_smallest_limit_counts(
    tmp_path: Path, groups: str | None, files: dict[str, str], expected: int
) -> None:
    write(tmp_path, groups, files)
    assert memory_limit(tmp_path, MACHINE) == expected


@pytest.mark.parametrize(("groups", "files", "expected"), CORES.values(), ids=CORES)
def test_whole_cores_within_the_quota_count(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str | None,
    files: dict[str, str],
    expected: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    write(tmp_path, groups, files)
    assert available_cores(tmp_path) == expected


def write(root: Path, groups: str | None, files: dict[str, str]) -> None:
    """Write limit files of control groups, and `groups` to /proc/self/cgroup unless it is None."""
    named = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    if groups is not None:
        named["proc/self/cgroup"] = groups
    for name, text in named.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def test_this_machine_has_a_limit() -> None:
    assert memory_limit() > 100_000_000


# Memory of a process ------------------------------------------------------------------------

# Program: many threads allocate at once; prints what glibc says of its heaps.
MANY_THREADS = """
import ctypes, threading
from service.core.processes.resources import share_heaps

if {shared}:
    assert share_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(12)

def allocate():
    together.wait()
    libc.malloc(5000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""
# Program: allocates 100 MB in small blocks and frees all but the last. Prints the resident MB
# before and after the free pages were given back.
FREE_PAGES = """
import ctypes, re
from pathlib import Path
from service.core.processes.resources import give_back_free_pages

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

blocks = [libc.malloc(10_000) for _ in range(10_000)]
for block in blocks:
    ctypes.memset(ctypes.c_void_p(block), 1, 10_000)
for block in blocks[:-1]:  # the last one keeps the others from the end of the heap
    libc.free(ctypes.c_void_p(block))
before = resident()
assert give_back_free_pages()
print(before, resident())
"""

only_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc has heaps of threads"
)


def printed(program: str) -> str:
    """Run a Python program in a new process; return what it prints."""
    return subprocess.run(python(program), capture_output=True, text=True, check=True).stdout


@only_glibc
def test_threads_share_two_heaps_and_have_many_otherwise() -> None:
    assert printed(MANY_THREADS.format(shared=True)).count("<heap ") in (1, 2)
    assert printed(MANY_THREADS.format(shared=False)).count("<heap ") > 2


@only_glibc
def test_free_pages_are_given_back() -> None:
    before, after = map(int, printed(FREE_PAGES).split())
    assert before > after + 80


# Children of low priority: their output, quoted errors, and time limits ----------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_output_of_the_child_is_returned_even_if_both_pipes_carry_much() -> None:
    code = "import os; print(os.environ['OMP_NUM_THREADS'], 'ünd')"
    assert LowPriorityChild().run(python(code)) == "1 ünd\n"
    code = "import sys; sys.stderr.write('x' * 10**6); print('y' * 10**6)"
    assert len(LowPriorityChild().run(python(code))) == 10**6 + 1


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("raise ValueError('too few rows')", "ended with 1: ValueError: too few rows"),
        ("import sys; sys.exit('orphaned')", "ended with 1: orphaned"),
        ("import os; os.kill(os.getpid(), 9)", "ended with -9"),
    ],
)
def test_a_child_that_fails_is_quoted(code: str, complaint: str) -> None:
    child = LowPriorityChild()
    with pytest.raises(SealError, match=complaint):
        child.run(python(code))
    assert child.run(python("print(1)")) == "1\n"


def test_a_child_that_is_not_done_in_time_is_killed() -> None:
    child = LowPriorityChild()
    with pytest.raises(SealLate, match="not done after 0 s"):
        child.run(python("import time; time.sleep(60)"), seconds=0.2)
    assert child.run(python("print(1)"), seconds=60) == "1\n"


@pytest.mark.parametrize(("share", "niceness"), [(0.5, 0), (0.15, 8), (0.1, 10), (0.001, 19)])
def test_the_niceness_of_a_share(share: float, niceness: int) -> None:
    """Linux weighs a process by 1.25^-niceness: at 10 it is 0.107, and 0.107 / 1.107 = 10 %."""
    assert niceness_of(share) == niceness
