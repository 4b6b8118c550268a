"""Arrays, texts and files with invalid content are refused even if their checksums are right."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import orjson
import pytest

from service.cli.check import check
from service.core.bundle import manifest
from service.core.bundle.bundle import files_read, open_bundle
from service.core.bundle.label_details import Details, dump
from service.core.changes import DeleteLabel
from service.core.errors import BundleAltered
from service.core.files import text_store
from service.core.files.arrays import is_constant
from service.core.index.frozen_segment import build_segment
from service.core.index.libraries import IndexParameters
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from tests.support.tiny.bundles import (
    LABELS,
    Catalogue,
    sign_again,
    write_document,
    write_whole_bundle,
)
from tests.support.tiny.items import ITEMS

DETAILS = dump(Details(queries=("igloo",), novel=True, version=7, rows=(2,)))
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contents") / "whole"
    return write_whole_bundle(folder, label_details=[DETAILS] * len(LABELS))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of the bundle, with stored clicks, for a test to damage."""
    folder = Path(shutil.copytree(whole, tmp_path / "bundle"))
    np.save(folder / "instances/clicks.npy", np.array([2, 5]))
    sign_again(folder)
    return folder


def number(name: str, place: Any, value: object) -> Any:
    """A case in which one number of an array is replaced; the error names the array."""

    def change(folder: Path) -> None:
        array = np.load(folder / name)
        array[place] = value
        (folder / name).unlink()
        np.save(folder / name, array)

    return pytest.param(name, change, id=f"{name} {value}")


def array(name: str, values: np.ndarray, said: str) -> Any:
    """A case in which an array is replaced; the error says `said`."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        np.save(folder / name, values)

    return pytest.param(said, change, id=f"{name} {values.dtype} {values.shape}")


def texts(name: str, *content: bytes, ends: list[int] | None = None) -> Any:
    """A case in which a text store is replaced; the error names the store."""

    def change(folder: Path) -> None:
        (folder / f"{name}.bin").write_bytes(b"".join(content))
        offsets = np.cumsum([0, *map(len, content)]) if ends is None else np.array(ends)
        np.save(folder / f"{name}.offsets.npy", offsets)

    return pytest.param(name, change, id=f"{name} {content}")


def row_map(*rows: int) -> Any:
    """A case in which the base graph's first nodes stand for other rows."""

    def change(folder: Path) -> None:
        path = str(folder / "segments/base.index")
        index = faiss.read_index(path)
        row_at = faiss.vector_to_array(index.id_map)
        row_at[: len(rows)] = rows
        faiss.copy_array_to_vector(row_at, index.id_map)
        faiss.write_index(index, path)

    return pytest.param("base.index", change, id=f"base.index {rows}")


def another_metric(folder: Path) -> None:
    path = str(folder / "segments/base.index")
    index = faiss.read_index(path)
    faiss.downcast_index(index.index).metric_type = faiss.METRIC_L2
    faiss.write_index(index, path)


def another_size(folder: Path) -> None:
    keys = np.load(folder / "keys.npy")[:3]
    build_segment(keys, IndexParameters(m=8), folder / "segments/base.index", lambda done: None)


SIX = [f"text {n}".encode() for n in range(6)]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        number("values/indptr.npy", 0, 1),
        number("values/indptr.npy", 2, 99),
        number("values/indptr.npy", -1, 8),
        number("values/indptr.npy", 1, -1),
        number("values/indices.npy", 3, -1),
        number("values/indices.npy", 3, len(LABELS)),
        number("values/indices.npy", -1, 2**31 - 1),
        number("values/weights.npy", 0, np.nan),
        number("values/weights.npy", 0, np.inf),
        number("values/weights.npy", 0, -1.0),
        number("values/clicks.npy", 0, 0.0),
        number("values/clicks.npy", 0, np.nan),
        number("values/clicks.npy", 0, np.inf),
        number("values/clicks.npy", 0, -1.0),
        number("instances/clicks.npy", 1, 8),
        number("instances/clicks.npy", 0, -1),
        number("instances/clicks.npy", 1, 2),
        number("keys.npy", (-1, -1), np.nan),
        number("keys.npy", (0, 0), np.inf),
        number("labels/ids.order.npy", 0, 6),
        number("labels/ids.order.npy", 0, -1),
        number("labels/texts.offsets.npy", 1, 10**9),
        number("labels/texts.offsets.npy", 0, 1),
        number("novel/columns.npy", -1, 6),
        number("novel/columns.npy", 0, -1),
        number("novel/classifiers.npy", (0, 0), np.nan),
        number("items/keys.npy", (0, 0), np.nan),
        number("items/projected.npy", (0, 0, 0), np.inf),
        number("items/ids.order.npy", 0, 4),
        number("reranker/rarity.npy", 0, np.nan),
        number("reranker/rarity.npy", 0, -1.0),
        number("reranker/words.npy", 0, 2**64 - 1),
        array("keys.npy", np.zeros((13, 16), np.float16), "keys.npy holds"),
        array("values/indptr.npy", np.zeros(8, np.int64), "indptr.npy holds"),
        array("values/indices.npy", np.zeros(99, np.int32), "indices.npy holds"),
        array("novel/columns.npy", np.array([0, 1, 1, 2, 3]), "columns.npy is not ascending"),
        array("novel/classifiers.npy", np.zeros((5, 3), np.float16), "classifiers.npy .*expected"),
        array("items/keys.npy", np.zeros((len(ITEMS), 3), np.float16), "items/keys.npy"),
        array("items/projected.npy", np.zeros((len(ITEMS), 3), np.float16), "items/projected"),
        array("reranker/words.npy", np.zeros(3), "words.npy .*expected uint64"),
        array("reranker/words.npy", np.arange(12, dtype=np.uint64)[::-1], "not ascending"),
        array("reranker/words.npy", np.zeros((12, 1), np.uint64), "words.npy holds"),
        array("reranker/rarity.npy", np.zeros(3), r"rarity.npy holds float64 \[3\]"),
        texts("labels/texts", *SIX[:1]),
        texts("labels/texts", *SIX[:5], b"\xff\xfe"),
        texts("labels/texts", *SIX[:4], b"\xc3", b"\xa4"),
        texts("labels/ids", *SIX[:5], b"\xc3"),
        texts("instances/texts", *SIX, b"", b"\xed\xa0\x80"),
        texts("labels/texts", *SIX, ends=[0, 6, 12, 9, 24, 30, 36]),
        texts("labels/details", *SIX[:5], b"\x80"),
        row_map(10**9),
        row_map(-1),
        row_map(1, 1),
        texts("labels/details", *SIX[:1]),
        pytest.param("base.index", another_metric, id="another metric"),
        pytest.param("base.index", another_size, id="another size"),
    ],
)
def test_what_answering_relies_on_is_verified_at_open(
    folder: Path, name: str, change: Change
) -> None:
    change(folder)
    sign_again(folder)
    with pytest.raises(BundleAltered, match=name):
        open_bundle(folder)


def other_order(folder: Path) -> None:
    path = folder / "labels/ids.order.npy"
    np.save(path, np.load(path)[::-1])


def equal_ids(folder: Path) -> None:
    text_store.write(folder / "labels/ids", ["same"] * len(LABELS), lookup=True)


def other_keys(folder: Path) -> None:
    keys = np.load(folder / "keys.npy")
    np.save(folder / "keys.npy", keys[::-1].copy())


def details(text: str) -> Any:
    def change(folder: Path) -> None:
        text_store.write(folder / "labels/details", [DETAILS] * 5 + [text])

    return pytest.param("details of label 5", change, id=f"details {text}")


def other_trees(folder: Path) -> None:
    rarity = np.load(folder / "reranker/rarity.npy")
    np.save(folder / "reranker/rarity.npy", rarity / 2)


def other_attention(folder: Path) -> None:
    document = orjson.loads((folder / manifest.FILE_NAME).read_bytes())
    document["items"]["attended"] = 3
    write_document(folder, document)


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("ids.order.npy is not the order", other_order),
        ("ids.order.npy is not the order", equal_ids),
        ("base.index holds other vectors", other_keys),
        ("not those of the fingerprint", other_trees),
        ("not those of the fingerprint", other_attention),
        details("{"),
        details("[]"),
        details('{"queries": [], "rows": [8]}'),
        details('{"queries": [], "rows": ["0"]}'),
        details('{"queries": [], "rows": [0], "color": 1}'),
        details('{"rows": [0]}'),
    ],
)
def test_what_takes_longer_is_verified_by_check(folder: Path, said: str, change: Change) -> None:
    change(folder)
    sign_again(folder)
    open_bundle(folder)
    with pytest.raises(BundleAltered, match=said):
        check(bundle=folder)


def test_a_whole_bundle_passes_the_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(bundle=folder) == 0
    assert "files verified" in capsys.readouterr().out


def test_a_bundle_without_labels_passes_the_check(
    make_bundle: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bundle is a snapshot written after all labels were deleted."""
    memory = KnowledgeMemory(open_bundle(make_bundle(Catalogue(labels={"a": "b"}, instances={}))))
    view = memory.apply([DeleteLabel(sequence=1, id="a")])
    write_snapshot(view, tmp_path / "none", name="none", log="")
    assert check(bundle=tmp_path / "none") == 0
    assert "0 labels" in capsys.readouterr().out


def test_every_file_that_is_read_must_be_listed(folder: Path) -> None:
    document = orjson.loads((folder / manifest.FILE_NAME).read_bytes())
    names = files_read(manifest.read(folder))
    parts = {"novel/combiner.onnx", "reranker/trees.onnx", "items/keys.npy", "items/fuse.onnx"}
    assert {"labels/ids.order.npy", "tokenizer.json", *parts} <= {*names}
    for name in names:
        if name == "labels/details.bin":
            continue  # optional: without it, labels have no details
        unlisted = {other: facts for other, facts in document["files"].items() if other != name}
        write_document(folder, {**document, "files": unlisted})
        with pytest.raises(BundleAltered, match=f"the manifest lists no file {name}"):
            open_bundle(folder)


def test_a_file_that_is_not_listed_is_not_read(folder: Path) -> None:
    document = orjson.loads((folder / manifest.FILE_NAME).read_bytes())
    optional = ("values/weights.npy", "instances/clicks.npy", "labels/details.bin")
    for name in optional:
        del document["files"][name]
        (folder / name).write_bytes(b"something else")
    write_document(folder, document)
    opened = open_bundle(folder)
    assert is_constant(opened.vote_weights) and opened.label_details.store is None
    assert len(opened.clicks) == 0
