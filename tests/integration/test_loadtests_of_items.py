"""The load tests of items compare bundles with and without items, and a scan with an index."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from service.core.bundle.bundle import open_bundle
from tests.support import commands

run = partial(commands.run, seconds=240)

pytestmark = pytest.mark.slow


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")
def test_items_are_measured_beside_the_bundle_without_them(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    few = ("--rounds", "2", "--queries", "4", "--out", tmp_path, "--sizes")
    ended = run("loadtests.parts.items", "--bundle", tiny_bundle_folder, *few, "5", "12")
    assert ended.returncode == 0, ended.stderr
    plain, five, twelve, *added = json.loads((tmp_path / "items.json").read_text())["rows"]
    assert plain["what"].startswith("without items")
    assert all(row["figures"]["p50_ms"] > 0 for row in (plain, five, twelve))
    assert [row["what"].split()[0] for row in added] == ["5", "12"]
    opened = open_bundle(tmp_path / f"{tiny_bundle_folder.name}-12-items-0")
    assert opened.items is not None and len(opened.items.ids) == 12
    many = run("loadtests.parts.items", "--bundle", tiny_bundle_folder, *few, "14")
    assert many.returncode == 2
    assert "too few for 14 items and a query" in many.stderr


def test_a_scan_of_items_is_measured_beside_an_index(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    few = ("--sizes", "6", "10", "--queries", "4", "--out", tmp_path)
    ended = run("loadtests.parts.item_search", "--bundle", tiny_bundle_folder, *few)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads((tmp_path / "item_search.json").read_text())["rows"]
    assert [row["what"].split(":")[0] for row in rows] == ["6 items"] * 2 + ["10 items"] * 2
    assert all(row["figures"]["recall"]["64"] == 1.0 for row in rows[::2])
    assert all(row["figures"]["write_ms"] > 0 for row in rows[1::2])


def test_posted_items_are_measured_scanned_and_sealed(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    few = ("--sizes", "10", "--seal-items", "2", "--queries", "4", "--out", tmp_path)
    ended = run("loadtests.parts.posted_items", "--bundle", tiny_bundle_folder, *few)
    assert ended.returncode == 0, ended.stderr
    [row] = json.loads((tmp_path / "posted_items.json").read_text())["rows"]
    assert row["what"] == "9 posted items"
    assert (row["figures"]["indexes"], row["figures"]["recall"]) == (1, 1.0)
