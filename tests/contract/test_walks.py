"""The two walks in CONTRIBUTING.md name exactly the files whose code a query or a label runs.

A file of `service` counts if one of its functions is called between the socket and the last byte of
the answer, by any thread that works for the request. A first request has imported and warmed up
everything. Periodic work does not count.
"""

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from types import FrameType
from typing import Any

import pytest

from tests.support.http.server import http_service

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "service"
# Threads that do periodic work, independent of requests.
PERIODIC = ("log-checker", "log-watcher")
SWEPT = {"server/connection.py"}  # also called by a timer of the event loop
# The writer's own commit tells it to read the log, before or after the answer is sent.
FOLLOWED = {"engine/loaded_bundle.py"}
QUIET_SECONDS = 0.3
MOST = {"A query": 30, "A label": 45}
LABEL = {"labels": [{"text": "a green lamp"}]}  # warm-up request
REQUESTS = {
    "A query": ("/predict", {"queries": ["a red lamp"]}),
    "A label": ("/labels", {"labels": [{"text": "a blue lamp"}]}),
}


class Walked:
    """A profiler that collects the files of `service` whose functions are called while `on`."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.on = False

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self.on and event == "call" and threading.current_thread().name not in PERIODIC:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(SERVICE):
                self.files.add(str(path.relative_to(SERVICE)))

    def wait_until_quiet(self) -> None:
        """Wait until earlier requests have no work left; then collect anew."""
        self.on, busy = True, True
        while busy:
            self.files = set()
            sleep(QUIET_SECONDS)
            busy = bool(self.files - SWEPT)


@pytest.fixture(scope="module")
def walks(
    tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, set[str]]]:
    """Map the name of each walk to the files that its request ran."""
    walked, before = Walked(), sys.getprofile()
    threading.setprofile(walked)  # for threads that the service starts
    files: dict[str, set[str]] = {}
    try:
        with http_service(tiny_bundle_folder, tmp_path_factory.mktemp("state")) as service:
            for path, document in (("/predict", {"queries": ["a"]}), ("/labels", LABEL)):
                service.client.post(path, json=document).raise_for_status()
            for name, (path, document) in REQUESTS.items():
                walked.wait_until_quiet()
                service.client.post(path, json=document).raise_for_status()
                walked.on = False
                files[name] = walked.files
    finally:
        threading.setprofile(before)
    yield files


def documented(name: str) -> list[str]:
    """The files that CONTRIBUTING.md lists for a walk, in order."""
    _, _, section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Two walks\n")
    section = section.partition("\n## ")[0].partition(f"**{name}")[2].partition("\n**")[0]
    return re.findall(r"^\d+\. `service/([\w/]+\.py)`", section, re.MULTILINE)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_walk_names_the_files_that_a_request_passes(
    name: str, walks: dict[str, set[str]]
) -> None:
    named = documented(name)
    assert len(named) == len(set(named))
    may_follow = FOLLOWED if name == "A label" else set()
    assert set(named) == walks[name] - may_follow
    assert len(named) <= MOST[name]
