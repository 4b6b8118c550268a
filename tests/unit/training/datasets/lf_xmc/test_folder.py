"""Both formats, JSON and sparse text: how they are read, and that errors name file and line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import InvalidData
from training.datasets import lf_xmc
from training.datasets.dataset import Propensity

REAL = Path(__file__).parents[6] / "shared" / "data" / "debian-seealso"

Change = Callable[..., Path]

GOOD: dict[str, list[dict[str, Any]]] = {
    "metadata.json": [{"uid": "m0", "title": "tag"}, {"uid": "m1", "title": "sign"}],
    "lbl.json": [
        {"uid": "l0", "title": "red", "content": "a colour", "metadata_ind": [1]},
        {"uid": "l1", "title": "blue"},
    ],
    "trn.json": [
        {"uid": "q0", "title": "rose", "target_ind": [1, 0], "target_rel": [0.5, 2]},
        {"uid": "q1", "title": "sky", "content": " ", "metadata_ind": [0, 1]},
    ],
    "tst.json": [{"uid": "q0", "title": "poppy", "target_ind": [0]}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "flowers"
    target.mkdir()
    for name, rows in GOOD.items():
        (target / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (target / "filter_labels_train.txt").write_text("0 1\n")
    return target


def test_what_the_rows_mean(folder: Path) -> None:
    dataset = lf_xmc.read(folder)
    assert dataset.name == "flowers"
    assert dataset.propensity == Propensity(a=0.55, b=1.5)
    assert dataset.labels.texts == ("red a colour", "blue")
    assert dataset.train.instances.texts == ("rose", "sky")  # a blank content is not appended
    assert dataset.train.labels_of.toarray().tolist() == [[2.0, 0.5], [0.0, 0.0]]
    assert dataset.test.labels_of.toarray().tolist() == [[1.0, 0.0]]  # 1 if target_rel is missing
    assert dataset.train.filtered.toarray().tolist() == [[False, True], [False, False]]
    assert dataset.test.filtered.nnz == 0
    assert dataset.train.metadata_of.toarray().tolist() == [[0, 0], [1, 1]]
    assert dataset.label_metadata.toarray().tolist() == [[0, 1], [0, 0]]
    assert dataset.train.instances.uids[0] == dataset.test.instances.uids[0] == "q0"


def test_metadata_indices_mean_nothing_without_the_file(folder: Path) -> None:
    (folder / "metadata.json").unlink()
    dataset = lf_xmc.read(folder)
    assert dataset.metadata is None
    assert dataset.train.metadata_of is None


def test_gzip_carriage_returns_and_byte_order_marks(folder: Path) -> None:
    content = (folder / "trn.json").read_bytes()
    (folder / "trn.json").unlink()
    with gzip.open(folder / "trn.json.gz", "wb") as stream:
        stream.write(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    assert lf_xmc.read(folder).train.instances.texts == ("rose", "sky")


ROW = {"uid": "q9", "title": "iris", "target_ind": [0, 1], "target_rel": [1, 1]}

# Changes of `ROW`, each with the error message about the changed field.
BAD_FIELDS: list[tuple[str, Any, str]] = [
    ("uid", 9, "must be a text, not int"),
    ("title", None, "must be a text, not NoneType"),
    ("content", ["x"], "must be a text, not list"),
    ("uid", " ", "is empty"),
    ("title", " ", "the text is empty"),
    ("uid", "q1", "'q1' is already the uid of line 2"),
    *(("target_ind", wrong, "must be a list of integers") for wrong in (0, [0, "1"])),
    *(("target_ind", [0, wrong], "must be a list of integers") for wrong in (True, 1.0)),
    ("target_ind", [0, 2], "2 is out of range: it must be below 2"),
    ("target_ind", [-1, 0], "-1 is out of range: it must be below 2"),
    ("target_ind", [1, 1], "an index is repeated"),
    *(("target_rel", wrong, "must be a list as long as target_ind, 2") for wrong in ([1], None)),
    *(
        ("target_rel", [1, wrong], f"{wrong!r} is not a positive finite number")
        for wrong in (0, -1.5, "1", 1e39, 1e-50)
    ),
    ("metadata_ind", [2], "2 is out of range: it must be below 2"),
    ("metadata_ind", [0, 0], "an index is repeated"),
]
BAD_LINES = [
    *((json.dumps(ROW | {field: value}), f"{field}: {said}") for field, value, said in BAD_FIELDS),
    ("{", "not valid JSON"),
    ("", "not valid JSON"),
    ('{"uid": "\\ud800", "title": "t"}', "not valid JSON"),
    ("[1]", "expected a JSON object, not list"),
    ('{"title": "iris"}', "uid: is missing"),
    ('{"uid": "q9"}', "title: is missing"),
    ('{"uid": "q9", "title": "t", "target_ind": [0], "target_rel": [NaN]}', "not valid JSON"),
    ('{"uid": "q9", "title": "t", "target_ind": [0], "target_rel": [1e999]}', ""),
    (b'{"uid": "q\xff"}', "not valid UTF-8 at byte 11 of the line"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_LINES)
def test_a_bad_line_is_named(folder: Path, bad: str | bytes, message: str) -> None:
    path = folder / "trn.json"
    with path.open("ab") as stream:
        stream.write((bad if isinstance(bad, bytes) else bad.encode()) + b"\n")
    with pytest.raises(InvalidData) as caught:
        lf_xmc.read(folder)
    assert str(caught.value).startswith(f"{path}:3: {message}")
    assert (caught.value.path, caught.value.line) == (path, 3)


@pytest.mark.parametrize("name", ["lbl.json", "tst.json", "metadata.json"])
def test_every_file_is_validated(folder: Path, name: str) -> None:
    path = folder / name
    first = path.read_text().splitlines()[0]
    path.write_text(f"{first}\n{first}\n")
    with pytest.raises(InvalidData, match=f"{name}:2: uid: '.*' is already the uid of line 1"):
        lf_xmc.read(folder)
    if name == "lbl.json":
        path.write_text('{"uid": "l", "title": "t", "metadata_ind": [5]}\n')
        with pytest.raises(InvalidData, match=r"lbl.json:1: metadata_ind: 5 is out of range"):
            lf_xmc.read(folder)


def test_label_fields_are_found_by_uid(folder: Path) -> None:
    assert lf_xmc.read(folder).label_fields is None
    path = folder / "label_fields.json"
    path.write_text('{"uid": "l1", "fields": {"price": 3, "sizes": ["s", "m"]}}\n')
    assert lf_xmc.read(folder).label_fields == ({}, {"price": 3, "sizes": ("s", "m")})


def test_label_aliases_are_found_by_uid(folder: Path) -> None:
    assert lf_xmc.read(folder).label_aliases is None
    path = folder / "label_aliases.json"
    path.write_text('{"uid": "l1", "aliases": [" X-1 ", "x-1", "b"]}\n')
    assert lf_xmc.read(folder).label_aliases == ((), ("X-1", "b"))


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("fields", '{"fields": {}}', "uid: 'None' is no label's uid"),
        ("fields", '{"uid": "l9", "fields": {}}', "uid: 'l9' is no label's uid"),
        ("fields", '{"uid": "l0", "fields": {}}', "uid: is repeated"),
        ("fields", '{"uid": "l1"}', "fields: must be an object"),
        ("fields", '{"uid": "l1", "fields": {"x": {}}}', "x: must be a string, a number"),
        ("fields", '{"uid": "l1", "fields": {"x": null}}', "x: must be a string, a number"),
        ("fields", "[", "not valid JSON"),
        ("aliases", '{"uid": "l9", "aliases": []}', "uid: 'l9' is no label's uid"),
        ("aliases", '{"uid": "l0", "aliases": []}', "uid: is repeated"),
        ("aliases", '{"uid": "l1"}', "aliases: must be a list of texts that are not empty"),
        ("aliases", '{"uid": "l1", "aliases": [1]}', "aliases: must be a list of texts that"),
        ("aliases", '{"uid": "l1", "aliases": [" "]}', "aliases: must be a list of texts that"),
    ],
)
def test_bad_label_fields_and_aliases_are_named(
    folder: Path, name: str, line: str, said: str
) -> None:
    path = folder / f"label_{name}.json"
    good = {"fields": {"x": 1}, "aliases": ["x"]}[name]
    path.write_text(f"{json.dumps({'uid': 'l0', name: good})}\n{line}\n")
    with pytest.raises(InvalidData) as caught:
        lf_xmc.read(folder)
    assert str(caught.value).startswith(f"{path}:2: {said}")


@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip"])
def test_damaged_gzip_is_named(folder: Path, damage: str) -> None:
    rows = (json.dumps({"uid": f"u{row}", "title": f"title {row * 7919}"}) for row in range(5000))
    packed = gzip.compress("".join(f"{row}\n" for row in rows).encode(), mtime=0)
    middle = len(packed) // 2
    broken = {
        "cut": packed[:middle],
        "flipped": packed[:middle] + b"\x00" * 64 + packed[middle + 64 :],
        "not gzip": b"plain",
    }[damage]
    (folder / "trn.json").unlink()
    (folder / "trn.json.gz").write_bytes(broken)
    with pytest.raises(InvalidData, match=r"trn.json.gz:\d+: ") as caught:
        lf_xmc.read(folder)
    # Flipped bytes may also unpack to wrong text, which gives another error first.
    assert damage == "flipped" or "damaged or cut short" in str(caught.value)


@pytest.mark.parametrize("name", sorted({*GOOD} - {"tst.json"}))  # the test split may be empty
def test_a_file_without_rows(folder: Path, name: str) -> None:
    (folder / name).write_text("")
    with pytest.raises(InvalidData, match=f"{name}: holds no rows"):
        lf_xmc.read(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *((line, f"expected `row label`, not {line!r}") for line in ("0", "", "0 1 2", "0 1.0")),
        *((f"0 {last}", "expected `row label`") for last in ("-1", "\u0661", "9" * 5000)),
        ("2 0", "row: 2 is out of range: it must be below 2"),
        ("0 2", "label: 2 is out of range: it must be below 2"),
    ],
)
def test_a_bad_filter_line_is_named(folder: Path, line: str, message: str) -> None:
    path = folder / "filter_labels_train.txt"
    path.write_text(f"0 1\n{line}\n", encoding="utf-8")
    with pytest.raises(InvalidData) as caught:
        lf_xmc.read(folder)
    assert str(caught.value).startswith(f"{path}:2: {message}")
    path.write_text("0 1\n0 1\n")
    assert lf_xmc.read(folder).train.filtered.nnz == 1


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "lbl.json").unlink()
    with pytest.raises(InvalidData, match=r"missing lbl\.json \("):
        lf_xmc.read(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidData, match=r"trn\.json, tst\.json, lbl\.json or trn_X_Y\.txt, "):
        lf_xmc.read(tmp_path / "empty")
    with pytest.raises(InvalidData, match="is not a folder"):
        lf_xmc.read(tmp_path / "absent")


def test_a_file_both_packed_and_plain_is_ambiguous(folder: Path) -> None:
    (folder / "trn.json.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(InvalidData, match=r"holds both trn\.json and trn\.json\.gz"):
        lf_xmc.read(folder)


DESCRIPTION: dict[str, Any] = {
    "format": "keymatch-dataset",
    "version": 1,
    "name": "meadow",
    "propensity": {"a": 0.6, "b": 2.6},
    "fields": ["title"],
    "source": "by hand",
}


def test_the_description_is_used(folder: Path) -> None:
    (folder / "dataset.json").write_text(json.dumps(DESCRIPTION))
    dataset = lf_xmc.read(folder)
    assert (dataset.name, dataset.source, dataset.fields) == ("meadow", "by hand", ("title",))
    assert dataset.propensity == Propensity(a=0.6, b=2.6)
    assert dataset.labels.texts == ("red", "blue")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "format: must be 'keymatch-dataset'"),
        ({"name": 1}, "name: is not what `data pairs` writes: must be a string"),
        ({"source": None}, "source: is not what `data pairs` writes"),
        ({"propensity": [0.5, 1]}, "propensity: is not what `data pairs` writes"),
        ({"propensity": {"a": 0.5}}, "propensity.b: is not what `data pairs` writes: is missing"),
        ({"propensity": {"a": -1, "b": 1}}, "propensity a must be a positive finite number"),
        ({"fields": "title"}, "fields: is not what `data pairs` writes"),
        ({"fields": ["content"]}, "fields must be title or title, content"),
    ],
)
def test_a_bad_description_is_named(folder: Path, change: dict[str, Any], message: str) -> None:
    path = folder / "dataset.json"
    path.write_text(json.dumps(DESCRIPTION | change))
    with pytest.raises(InvalidData) as caught:
        lf_xmc.read(folder)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.skipif(not REAL.is_dir(), reason=f"REAL DATA NOT READ: {REAL} is absent")
def test_debian_seealso_reads_cleanly() -> None:
    dataset = lf_xmc.read(REAL)
    assert (len(dataset.train), len(dataset.test)) == (13_576, 3_499)
    assert (len(dataset.labels), dataset.metadata and len(dataset.metadata)) == (20_263, 597)
    assert (dataset.train.labels_of.nnz, dataset.test.labels_of.nnz) == (42_055, 11_375)
    assert (dataset.train.filtered.nnz, dataset.test.filtered.nnz) == (6_247, 1_591)
    seen = dataset.train.labels_of.sum(axis=0).A1 > 0
    assert dataset.test.labels_of[:, ~seen].nnz == 3_073
    for split in (dataset.train, dataset.test):
        assert split.labels_of.multiply(split.filtered).nnz == 0


# The sparse text format ---------------------------------------------------------------------------

FILES = {
    "label_raw_texts.txt": "red\nblue\n",
    "train_raw_texts.txt": "rose\nsky\n",
    "test_raw_texts.txt": "poppy\n",
    "trn_X_Y.txt": "2 2\n1:0.5 0:2\n\n",
    "tst_X_Y.txt": "1 2\n0:1.0\n",
    "filter_labels_test.txt": "0 1\n",
}


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    target = tmp_path / "flowers"
    target.mkdir()
    for name, content in FILES.items():
        (target / name).write_text(content)
    return target


def test_what_the_files_mean(sparse: Path) -> None:
    dataset = lf_xmc.read(sparse)
    assert dataset.labels.texts == ("red", "blue")
    assert dataset.labels.uids == ("0", "1")
    assert dataset.train.labels_of.toarray().tolist() == [[2.0, 0.5], [0.0, 0.0]]
    assert dataset.test.filtered.toarray().tolist() == [[False, True]]


def test_given_uids_are_as_many_as_texts(sparse: Path) -> None:
    (sparse / "label_uids.txt").write_text("r\nb\n")
    assert lf_xmc.read(sparse).labels.uids == ("r", "b")
    for uids, more in (("r\n", "more"), ("r\nb\nx\n", "fewer")):
        (sparse / "label_uids.txt").write_text(uids)
        with pytest.raises(InvalidData, match=f"label_raw_texts.txt.*has {more} lines than label_"):
            lf_xmc.read(sparse)


@pytest.mark.parametrize(
    ("content", "where"),
    [
        *((head, "1: expected a header `rows columns`") for head in ("", "2\n\n\n", "two 2\n\n\n")),
        ("3 2\n\n\n\n", "1: header: is 3 2, but there are 2 texts and 2 labels"),
        ("2 3\n\n\n", "1: header: is 2 3, but there are 2 texts and 2 labels"),
        ("2 2\n0:1\n", "2: the file ends after 1 rows, but the header says 2"),
        ("2 2\n0:1\n\n\n", "4: the file ends after 3 rows, but the header says 2"),
        *(
            (f"2 2\n\n{word}\n", f"3: expected `label:relevance`, not {word!r}")
            for word in ("0", "0:x", "-1:1", "0:1:1")
        ),
        ("2 2\n\n2:1\n", "3: label: 2 is out of range: it must be below 2"),
        ("2 2\n\n0:1 0:1\n", "3: label: a label is repeated"),
        *(
            (f"2 2\n\n0:{value}\n", f"3: relevance: {value} is not a positive finite number")
            for value in ("0.0", "nan", "inf")
        ),
    ],
)
def test_a_bad_matrix_is_named(sparse: Path, content: str, where: str) -> None:
    path = sparse / "trn_X_Y.txt"
    path.write_text(content)
    with pytest.raises(InvalidData) as caught:
        lf_xmc.read(sparse)
    assert str(caught.value).startswith(f"{path}:{where}")


def test_an_empty_text_and_missing_sparse_files_are_named(sparse: Path) -> None:
    (sparse / "label_raw_texts.txt").write_text("red\n \n")
    with pytest.raises(InvalidData, match=r"label_raw_texts\.txt:2: title: the text is empty"):
        lf_xmc.read(sparse)
    (sparse / "tst_X_Y.txt").unlink()
    (sparse / "label_raw_texts.txt").unlink()
    with pytest.raises(InvalidData, match=r"missing tst_X_Y\.txt, label_raw_texts\.txt \("):
        lf_xmc.read(sparse)


def test_json_wins_where_both_are_whole(sparse: Path) -> None:
    (sparse / "filter_labels_test.txt").unlink()
    for name in ("trn.json", "tst.json", "lbl.json"):
        (sparse / name).write_text('{"uid": "u", "title": "from json"}\n')
    assert lf_xmc.read(sparse).labels.texts == ("from json",)
