"""A bundle's combiner enriches posted labels, before and after a restart or a reload."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.encoding.representer import open_representer
from service.core.types import Halves, Role
from service.http.labels import LabelsAnswer
from tests.support.http.answers import assert_answer
from tests.support.serving import LocalService, local_service
from tests.support.tiny.bundles import LABELS, make_bundle

AXE = {"id": "axe", "text": "hiking axe", "queries": ["glacier tool"]}
ITEM = [(Role.LABEL, "hiking axe"), (Role.QUERY, "glacier tool")]


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Three bundles with the same labels: two with different combiners, one without."""
    for name, seed in (("one", 0), ("two", 1), ("none", None)):
        make_bundle(tmp_path / "shelf" / name, novel=seed)
    return tmp_path / "shelf"


@pytest.fixture
def served(shelf: Path, tmp_path: Path) -> Iterator[LocalService]:
    with local_service(shelf / "one", tmp_path / "state") as service:
        yield service


def post(service: LocalService, *labels: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    answer = service.post("/labels", {"labels": labels}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert_answer(answer.json(), LabelsAnswer)
    return answer.json()["labels"]


def key_of(service: LocalService, label_id: str = "axe") -> Halves:
    view = service.engine.view
    row = view.ownership.rows_of_label(view.labels.require(label_id).index, view.bundle)[0]
    return view.vectors(np.array([row]))[0]


def expected(bundle: Path) -> Halves:
    opened = open_bundle(bundle)
    encoder = OnnxEncoder(opened.folder, opened.manifest.encoder)
    return open_representer(encoder, opened).encode([ITEM])[0].rows[0]


def test_labels_and_lines_name_the_neighbours_that_enriched_them_for_good(
    served: LocalService, shelf: Path, tmp_path: Path
) -> None:
    assert served.get("/info").json()["novel_labels"] == "irene"
    assert "novel" in served.get("/info").json()["bundle"]
    [label] = post(served, AXE)
    assert (label["id"], label["status"]) == ("axe", "created")
    assert 1 <= len(label["neighbours"]) <= 3
    for near in label["neighbours"]:
        assert LABELS[near["id"]] == near["text"]
        assert -1.0 <= near["similarity"] <= 1.0
    assert np.array_equal(key_of(served), expected(shelf / "one"))
    assert post(served, AXE) == [{"id": "axe", "status": "unchanged", "neighbours": []}]
    lines = b"".join(orjson.dumps(one) + b"\n" for one in ({"text": "hiking saw"}, {"text": "zzz"}))
    answer = served.post("/labels", content=lines, headers={"content-type": "application/x-ndjson"})
    first, second = (orjson.loads(line) for line in answer.content.splitlines())
    assert first["neighbours"]
    assert second["status"] == "created"
    served.engine.close()
    with local_service(shelf / "one", tmp_path / "state") as restarted:
        assert np.array_equal(key_of(restarted), expected(shelf / "one"))


def test_deleted_neighbours_go_on_to_enrich_and_are_not_named(
    served: LocalService, shelf: Path
) -> None:
    once = {"Idempotency-Key": "k-1"}
    named = post(served, {"id": "x", "text": "hiking axe"}, **once)
    deleted = named[0]["neighbours"][0]["id"]
    assert served.request("DELETE", f"/labels/{deleted}").status_code == 200
    # A repeated request gets its first answer.
    assert post(served, {"id": "x", "text": "hiking axe"}, **once) == named
    [label] = post(served, AXE)
    assert deleted not in [near["id"] for near in label["neighbours"]]
    assert np.array_equal(key_of(served), expected(shelf / "one"))


@pytest.mark.parametrize("other", ["two", "none"])
def test_a_reload_encodes_live_labels_again(served: LocalService, shelf: Path, other: str) -> None:
    post(served, AXE)
    before = key_of(served)
    assert served.post("/admin/reload", {"bundle": other}).status_code == 200
    assert np.array_equal(key_of(served), expected(shelf / other))
    assert not np.array_equal(key_of(served), before)
    assert bool(post(served, {"text": "hiking pole"})[0]["neighbours"]) is (other == "two")


def test_a_snapshot_goes_on_enriching(served: LocalService, shelf: Path) -> None:
    post(served, AXE)
    before = key_of(served)
    name = served.post("/admin/snapshot", {"bundle": "taken"}).json()
    assert (shelf / "taken" / "novel" / "combiner.onnx").is_file(), name
    assert served.post("/admin/reload", {"bundle": "taken"}).status_code == 200
    assert np.array_equal(key_of(served), before)
    [label] = post(served, {"id": "pole", "text": "hiking pole"})
    assert label["neighbours"]
    assert "axe" not in [near["id"] for near in label["neighbours"]], "it has no classifier"


def test_a_bundle_without_a_combiner_names_no_neighbours(shelf: Path, tmp_path: Path) -> None:
    with local_service(shelf / "none", tmp_path / "state") as service:
        assert service.get("/info").json()["novel_labels"] == "text"
        assert "novel" not in service.get("/info").json()["bundle"]
        assert post(service, AXE) == [{"id": "axe", "status": "created", "neighbours": []}]
