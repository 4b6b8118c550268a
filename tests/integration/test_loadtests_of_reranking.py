"""The load test of a second ranking compares requests with and without it."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.tiny.bundles import make_bundle

run = partial(commands.run, seconds=240)

pytestmark = pytest.mark.slow


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")
def test_a_second_ranking_is_measured_beside_the_first(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    bundle = make_bundle(tmp_path / "bundle", reranked=4)
    few = ("--rounds", "2", "--queries", "4", "--out", tmp_path)
    ended = run("loadtests.parts.reranking", "--bundle", bundle, *few)
    assert ended.returncode == 0, ended.stderr
    memory, again, added = json.loads((tmp_path / "reranking.json").read_text())["rows"]
    assert memory["what"].startswith("the memory's ranking")
    assert again["what"].startswith("12 trees over 4 candidates")
    assert memory["figures"]["p50_ms"] > 0 < again["figures"]["p50_ms"]
    assert "added_ms" in added["figures"]

    without = run("loadtests.parts.reranking", "--bundle", tiny_bundle_folder, *few)
    assert without.returncode == 2
    assert "has no second ranking" in without.stderr
