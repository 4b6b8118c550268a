"""Child processes of low priority: their output, quoted errors, and how they are stopped."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.core.errors import SealError, SealLate
from service.core.processes.low_priority import LowPriorityChild, niceness_of
from tests.support.waiting import wait_for


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


def test_a_stopped_child_is_killed_and_no_other_is_started(tmp_path: Path) -> None:
    code = f"import pathlib, time; pathlib.Path({str(tmp_path)!r}, 'up').touch(); time.sleep(60)"
    child = LowPriorityChild()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(child.run, python(code))
        wait_for((tmp_path / "up").exists)
        child.stop()
        with pytest.raises(SealError, match="ended with -9"):
            running.result(timeout=10)
    with pytest.raises(SealError, match="the service is stopping"):
        child.run(python("print(1)"))


def test_a_child_that_is_not_done_in_time_is_killed() -> None:
    child = LowPriorityChild()
    with pytest.raises(SealLate, match="not done after 0 s"):
        child.run(python("import time; time.sleep(60)"), seconds=0.2)
    assert child.run(python("print(1)"), seconds=60) == "1\n"


@pytest.mark.parametrize(("share", "niceness"), [(0.5, 0), (0.15, 8), (0.1, 10), (0.001, 19)])
def test_the_niceness_of_a_share(share: float, niceness: int) -> None:
    """Linux weighs a process by 1.25^-niceness: at 10 it is 0.107, and 0.107 / 1.107 = 10 %."""
    assert niceness_of(share) == niceness
