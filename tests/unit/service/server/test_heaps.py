"""Threads of a process share its heaps."""

import platform
import subprocess
import sys

import pytest

# Many threads allocate at once; prints how many heaps glibc has then.
MANY_THREADS = """
import ctypes, re, threading
from service.server.heaps import share_heaps

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
