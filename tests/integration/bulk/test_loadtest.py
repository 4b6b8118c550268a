"""The load test of bulk answers runs from start to end."""

import json
from pathlib import Path

import pytest

from tests.support.commands import run


@pytest.mark.slow
def test_bulk_is_measured_against_http(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    ended = run(
        "loadtests.bulk",
        *("--bundle", tiny_bundle_folder, "--out", tmp_path, "--queries", 40),
        *("--rounds", 1, "--seconds", 0.3, "--requests-of", 1, "--requests-of", 4),
        seconds=240,
    )
    assert ended.returncode == 0, ended.stderr
    rows = json.loads((tmp_path / "bulk.json").read_bytes())["rows"]
    assert [row["what"] for row in rows] == [
        "HTTP, 1 queries a request",
        "HTTP, 4 queries a request",
        "in bulk, its start included",
        "in bulk",
    ]
