"""A child process tries a bundle: its answer, and its limits of memory and time."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.core.bundle.bundle import open_bundle
from service.core.errors import BundleUnsupported
from service.engine.trial import SPARE_BYTES, TIMES_FILES, first_answer, most_bytes
from tests.support.tiny.items import ITEMS

# Program: tries a bundle, then prints the limits that the trial set for this process.
BOUNDS = """
import os, resource, signal, sys
from pathlib import Path
from service.engine.trial import main
status = main(Path(sys.argv[1]), 3, 50)
print(status, os.nice(0), Path("/proc/self/oom_score_adj").read_text().strip(), signal.alarm(0))
print(*resource.getrlimit(resource.RLIMIT_DATA))
"""


def test_everything_that_a_bundle_has_takes_part(make_bundle: Callable[..., Path]) -> None:
    bundle = open_bundle(make_bundle(novel=0, items=ITEMS, reranked=4))
    prediction = first_answer(bundle)
    assert (prediction.query, prediction.score_kind) == (bundle.label_texts[0], "probability")
    assert len(prediction.keywords) == 1


def test_a_child_has_bounds_of_memory_and_time(tiny_bundle_folder: Path) -> None:
    command = [sys.executable, "-c", BOUNDS, str(tiny_bundle_folder)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first, second = said.splitlines()
    status, niceness, killed_first, seconds_left = map(int, first.split())
    assert (status, niceness, killed_first) == (0, min(os.nice(0) + 3, 19), 1000)
    assert 0 < seconds_left <= 50
    facts = open_bundle(tiny_bundle_folder).manifest
    allowed = SPARE_BYTES + TIMES_FILES * sum(file.bytes for file in facts.files.values())
    assert allowed == most_bytes(facts)
    limits = [int(number) for number in second.split()]
    assert limits[0] == limits[1] != resource.RLIM_INFINITY
    assert allowed < limits[0] < allowed + 4 * 1024**3  # memory for libraries is added


def test_an_error_that_no_bundle_foresees_is_named(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = open_bundle(make_bundle())
    monkeypatch.setattr(type(bundle.segment), "search", lambda *_a, **_k: 1 / 0)
    with pytest.raises(BundleUnsupported, match=r"bundle cannot answer a query: ZeroDivisionError"):
        first_answer(bundle)


def test_a_child_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "service.engine.trial", str(tmp_path), "0", "60"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == f"{tmp_path}/manifest.json is missing: {tmp_path} is not a bundle\n"


def test_a_child_ends_although_nobody_waits_for_it(tiny_bundle_folder: Path) -> None:
    """If the service was killed, only the child itself can end a graph that hangs."""
    stuck = f"""
from pathlib import Path
from service.engine import loaded_bundle, trial
trial.first_answer = lambda bundle: __import__("time").sleep(600)
trial.main(Path({str(tiny_bundle_folder)!r}), 0, 1)
"""
    ended = subprocess.run([sys.executable, "-c", stuck], check=False, timeout=300)
    assert ended.returncode == -14  # SIGALRM
