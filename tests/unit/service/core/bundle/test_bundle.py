"""A bundle is opened if it is complete, and refused with the name of the damaged file if not."""

import re
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.label_details import Details, dump
from service.core.errors import BundleAltered, BundleError, BundleMissing, InvalidInput
from service.core.files import text_store
from service.core.index.libraries import IndexParameters, load_library
from tests.support.tiny.bundles import INSTANCES, LABELS, Catalogue, sign_again

FILES = (
    "encoder.onnx",
    "tokenizer.json",
    "keys.npy",
    "segments/base.index",
    "values/indptr.npy",
    "values/indices.npy",
    "instances/texts.bin",
    "instances/texts.offsets.npy",
    "labels/ids.bin",
    "labels/ids.offsets.npy",
    "labels/ids.order.npy",
    "labels/texts.bin",
    "labels/texts.offsets.npy",
)


DETAILS = ("labels/details.bin", "labels/details.offsets.npy")
TENT = Details(queries=("igloo",), metadata={"bid": "0.30"}, novel=True, version=7, rows=(2,))


@pytest.fixture
def copy(tiny_bundle_folder: Path, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return Path(shutil.copytree(tiny_bundle_folder, tmp_path / "bundle"))


def test_an_opened_bundle_has_the_written_content(make_bundle: Callable[..., Path]) -> None:
    bundle = open_bundle(make_bundle(name="outdoor", tau=0.07, depth=12))
    facts = bundle.manifest
    assert (facts.name, facts.dataset) == ("outdoor", "outdoor goods")
    assert (facts.predictor.tau, facts.predictor.depth) == (0.07, 12)
    assert (bundle.instances, bundle.labels) == (len(INSTANCES), len(LABELS))
    assert list(bundle.instance_texts) == list(INSTANCES)
    assert list(bundle.label_ids) == list(LABELS)
    assert list(bundle.label_texts) == list(LABELS.values())
    assert [bundle.label_ids.find(label_id) for label_id in LABELS] == list(range(len(LABELS)))
    assert bundle.keys.dtype == np.float16
    assert np.linalg.norm(bundle.keys.astype(np.float32), axis=1) == pytest.approx(1, abs=2e-3)
    assert bundle.segment.rows == len(INSTANCES) + len(LABELS)


def test_the_value_rows_are_the_catalogues_votes(make_bundle: Callable[..., Path]) -> None:
    bundle = open_bundle(make_bundle())
    rows = np.split(np.asarray(bundle.indices), np.asarray(bundle.indptr)[1:-1])
    assert [row.tolist() for row in rows] == Catalogue().votes()


def test_the_manifest_lists_every_file(tiny_bundle_folder: Path) -> None:
    written = {
        str(path.relative_to(tiny_bundle_folder))
        for path in tiny_bundle_folder.rglob("*")
        if path.is_file()
    }
    assert written == {*FILES, "manifest.json"}
    assert set(open_bundle(tiny_bundle_folder).manifest.files) == set(FILES)


def test_a_bundle_may_have_no_instances(make_bundle: Callable[..., Path]) -> None:
    bundle = open_bundle(make_bundle(Catalogue(instances={})))
    assert (bundle.instances, len(bundle.indices)) == (0, 0)


def test_a_bundle_contains_no_path_of_the_machine_that_wrote_it(tiny_bundle_folder: Path) -> None:
    for path in tiny_bundle_folder.rglob("*"):
        if path.is_file():
            assert str(tiny_bundle_folder.parent).encode() not in path.read_bytes()


def test_an_exported_bundle_has_no_label_details(trigram_bundle: Bundle) -> None:
    assert trigram_bundle.label_details.at(0) == Details()
    facts = trigram_bundle.manifest
    assert (facts.version, facts.memory.version, facts.log) == (1, 0, "")


def test_label_details_are_read_by_column(make_bundle: Callable[..., Path]) -> None:
    texts = [dump(TENT) if label_id == "tent" else "" for label_id in LABELS]
    bundle = open_bundle(make_bundle(label_details=texts, version=7, log="0f" * 16))
    details = [bundle.label_details.at(column) for column in range(len(LABELS))]
    assert details == [TENT if label_id == "tent" else Details() for label_id in LABELS]
    assert set(bundle.manifest.files) == {*FILES, *DETAILS}
    assert (bundle.manifest.memory.version, bundle.manifest.log) == (7, "0f" * 16)


@pytest.mark.parametrize("name", DETAILS)
def test_damaged_label_details_are_named(make_bundle: Callable[..., Path], name: str) -> None:
    folder = make_bundle(label_details=[dump(TENT)] * len(LABELS))
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 0x01
    (folder / name).write_bytes(content)
    with pytest.raises(BundleAltered, match=re.escape(name)):
        open_bundle(folder)
    (folder / name).unlink()
    with pytest.raises(BundleMissing, match=re.escape(name)):
        open_bundle(folder)


def test_label_details_of_another_number_of_labels_are_refused(
    make_bundle: Callable[..., Path],
) -> None:
    folder = make_bundle(label_details=[dump(TENT)])
    with pytest.raises(BundleAltered, match="labels/details has shape 1, expected 6"):
        open_bundle(folder)


@pytest.mark.skipif(find_spec("hnswlib") is None, reason="hnswlib is not installed")
def test_a_bundle_may_be_indexed_by_hnswlib(make_bundle: Callable[..., Path]) -> None:
    parameters = IndexParameters(library="hnswlib", m=8, ef_construction=40, ef=64)
    assert open_bundle(make_bundle(index=parameters)).manifest.index.parameters() == parameters


# Damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(copy: Path, name: str) -> None:
    (copy / name).write_bytes((copy / name).read_bytes()[:-1])
    with pytest.raises(BundleAltered, match=re.escape(name)):
        open_bundle(copy)


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_one_flipped_bit_is_named(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 0x10
    (copy / name).write_bytes(content)
    with pytest.raises(BundleAltered, match=re.escape(name)):
        open_bundle(copy)


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_removed_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(BundleMissing, match=re.escape(name)):
        open_bundle(copy)


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_the_place_of_a_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    (copy / name).mkdir()
    with pytest.raises(BundleMissing, match=re.escape(name)):
        open_bundle(copy)


def test_an_edited_temperature_is_refused(copy: Path) -> None:
    path = copy / "manifest.json"
    document = orjson.loads(path.read_bytes())
    document["predictor"]["tau"] = 0.01
    path.write_bytes(orjson.dumps(document))
    with pytest.raises(BundleAltered, match=r"manifest\.json"):
        open_bundle(copy)


def test_a_path_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(BundleMissing, match="is not a bundle"):
            open_bundle(place)


def _fewer_keys(folder: Path) -> str:
    np.save(folder / "keys.npy", np.load(folder / "keys.npy")[:-1])
    return "keys.npy"


def _fewer_value_rows(folder: Path) -> str:
    np.save(folder / "values/indptr.npy", np.load(folder / "values/indptr.npy")[:-1])
    return "values/indptr.npy"


def _more_votes(folder: Path) -> str:
    np.save(folder / "values/indices.npy", np.zeros(99, np.int32))
    return "values/indices.npy"


def _another_number_of_label_texts(folder: Path) -> str:
    text_store.write(folder / "labels/texts", ["only one"])
    return "labels/texts"


def _another_index(folder: Path) -> str:
    keys = np.load(folder / "keys.npy")[:3]
    load_library("faiss").build(
        keys, IndexParameters(m=8), folder / "segments/base.index", lambda done: None
    )
    return "base.index"


@pytest.mark.parametrize(
    "exchange",
    [
        _fewer_keys,
        _fewer_value_rows,
        _more_votes,
        _another_number_of_label_texts,
        _another_index,
    ],
)
def test_files_that_contradict_each_other_are_refused_despite_correct_checksums(
    copy: Path, exchange: Callable[[Path], str]
) -> None:
    name = exchange(copy)
    sign_again(copy)
    with pytest.raises(BundleError, match=re.escape(name)):
        open_bundle(copy)


# Writing ---------------------------------------------------------------------------------


def test_an_existing_target_is_refused(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    with pytest.raises(InvalidInput, match="exists already"):
        make_bundle()
    assert list((tmp_path / "bundle").iterdir()) == []


@pytest.mark.parametrize("exception", [MemoryError, KeyboardInterrupt])
def test_a_failure_while_writing_leaves_no_files(
    make_bundle: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    exception: type[BaseException],
) -> None:
    def die(*_: object) -> None:
        raise exception

    monkeypatch.setattr(load_library("faiss"), "build", die)
    with pytest.raises(exception):
        make_bundle()
    assert list(tmp_path.iterdir()) == []
