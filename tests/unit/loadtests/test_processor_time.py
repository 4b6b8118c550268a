"""Processor time of a process and its children, read from /proc."""

import os
import subprocess
import sys

from loadtests.measure.processor_time import process_tree, processor_seconds

SPIN = (
    "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ninput()"
)
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}])"

ENDED_THREAD = (
    "import threading, time\ndef spin():\n  end = time.process_time() + 0.3\n"
    "  while time.process_time() < end: pass\n"
    "thread = threading.Thread(target=spin); thread.start(); thread.join(); print(); input()"
)


def test_the_work_of_a_child_counts() -> None:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE)
    try:
        while processor_seconds(process.pid) < 0.3:
            assert process.poll() is None
        assert len(list(process_tree(process.pid))) == 2
    finally:
        process.communicate(b"\n")
    assert processor_seconds(process.pid) == 0.0


def test_the_work_of_a_thread_that_has_ended_counts() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDED_THREAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "\n"
    assert processor_seconds(process.pid) >= 0.3
    process.communicate("\n")


def test_the_tree_begins_with_the_process_itself() -> None:
    assert next(process_tree(os.getpid())) == os.getpid()
