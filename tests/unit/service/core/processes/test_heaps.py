"""Threads of a process share its heaps."""

import platform
import subprocess
import sys

import pytest

# Many threads allocate at once; prints how many heaps glibc has then.
MANY_THREADS = """
import ctypes, re, threading
from service.core.processes.heaps import share_heaps

if {shared}:
    assert share_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.open_memstream.restype = ctypes.c_void_p
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
text, size = ctypes.c_char_p(), ctypes.c_size_t()
stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
libc.malloc_info(0, stream)
libc.fclose(stream)
print(len(re.findall(rb"<heap ", text.value)))
"""

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc has heaps of threads"
)


def test_threads_share_two_heaps() -> None:
    assert heaps_of_many_threads(shared=True) <= 2


def test_without_it_they_have_many() -> None:
    assert heaps_of_many_threads(shared=False) > 2


def heaps_of_many_threads(*, shared: bool) -> int:
    program = MANY_THREADS.format(shared=shared)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


# Allocates 100 MB in small blocks and frees all but the last; prints the resident megabytes before
# and after the free pages were given back.
FREE_PAGES = """
import ctypes, re
from pathlib import Path
from service.core.processes.heaps import give_back_free_pages

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


def test_free_pages_are_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FREE_PAGES], capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    assert before > after + 80
