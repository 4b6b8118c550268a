"""`keymatch compare` on two real bundles writes a page and a summary."""

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from service.__main__ import app
from service.core.bundle.label_details import Details, dump
from tests.support.commands import Refused, status_of
from tests.support.tiny.bundles import INSTANCES, LABELS, Catalogue

Arguments = list[object]


@pytest.fixture
def arguments(
    tiny_bundle_folder: Path, make_bundle: Callable[..., Path], tmp_path: Path
) -> Arguments:
    """Arguments that compare the tiny bundle with one that has learned nothing from clicks."""
    forgetful = Catalogue(instances=dict.fromkeys(INSTANCES, ()))
    brands = [dump(Details(metadata={"brand": "acme"}))] + [""] * (len(LABELS) - 1)  # of boots
    other = make_bundle(forgetful, name="forgetful", tau=0.5, label_details=brands)
    table = tmp_path / "queries.csv"
    rows = [
        f"{query},{label},{len(query.split())}"
        for query, labels in INSTANCES.items()
        for label in labels
    ]
    table.write_text("query,label,words\n" + "\n".join(rows) + "\n")
    bundles = ("--bundle", tiny_bundle_folder, "--bundle", other)
    return ["compare", *bundles, "--input", table, "--query", "query"]


def test_a_page_and_a_summary(
    arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "page.html"
    assert status_of(app, *arguments, "--label", "label", "--out", out) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(": 7 queries")
    assert said[1].startswith("overlap @1 ")
    assert said[2].startswith("queries that are instances of the memory: A 7, B 7, both 7.")
    assert said[3].startswith("known queries (7 of both memories, ")
    assert [line.split(":")[0] for line in said[4:7]] == ["P@1", "P@5", "R@10"]
    assert said[-1] == f"{out}: the page"
    html = out.read_text()
    for label in LABELS.values():
        assert label in html
    assert "shoes for running" in html


def test_slices_of_queries_and_labels(
    arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json = tmp_path / "comparison.json"
    slices = ("--label", "label", "--slice", "words", "--slice-field", "brand", "--json", json)
    assert status_of(app, *arguments, *slices, "--out", tmp_path / "page.html") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[7] == "queries by words: 3 values"
    assert [line.split(":")[0] for line in said[8:11]] == ["  3", "  2", "  4"]
    assert said[11] == "labels by brand: 1 values"
    assert [line.split(":")[0] for line in said[12:14]] == ["  (no value)", "  acme"][::-1]
    document = orjson.loads(json.read_bytes())
    assert [one["value"] for one in document["slices"]["words"]] == ["3", "2", "4"]
    assert [one["value"] for one in document["label_slices"]["brand"]] == ["acme", None]
    assert "<h2>Labels by brand</h2>" in (tmp_path / "page.html").read_text()


def test_wrong_arguments_are_named(refused: Refused, arguments: Arguments, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "page.html")
    bundle = arguments[:3]
    assert "--bundle must be given twice, not 1 times" in refused(
        app, *bundle, *arguments[5:], *out
    )
    assert "--top-k must be between 5 and 1,000" in refused(app, *arguments, *out, "--top-k", 4)
    assert "tag: there is no such column" in refused(app, *arguments, *out, "--label", "tag")
    assert "shop: there is no such column" in refused(app, *arguments, *out, "--slice", "shop")
    assert "no label of the bundles has the field 'color'; the labels' fields are: 'brand'" in (
        refused(app, *arguments, *out, "--slice-field", "color")
    )
    table = tmp_path / "queries.csv"
    assert "exists already" in refused(app, *arguments, "--out", table)
    assert "is not a folder" in refused(app, *arguments, "--out", table / "p")
