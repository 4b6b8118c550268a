"""The sparse text format: a hand-written folder is read, and each bad line is named."""

from pathlib import Path

import pytest

from service.core.errors import InvalidData
from training.datasets import lf_xmc

FILES = {
    "label_raw_texts.txt": "red\nblue\n",
    "train_raw_texts.txt": "rose\nsky\n",
    "test_raw_texts.txt": "poppy\n",
    "trn_X_Y.txt": "2 2\n1:0.5 0:2\n\n",
    "tst_X_Y.txt": "1 2\n0:1.0\n",
    "filter_labels_test.txt": "0 1\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "flowers"
    target.mkdir()
    for name, content in FILES.items():
        (target / name).write_text(content)
    return target


def test_what_the_files_mean(folder: Path) -> None:
    dataset = lf_xmc.read(folder)
    assert dataset.labels.texts == ("red", "blue")
    assert dataset.labels.uids == ("0", "1")
    assert dataset.train.labels_of.toarray().tolist() == [[2.0, 0.5], [0.0, 0.0]]
    assert dataset.test.filtered.toarray().tolist() == [[False, True]]


def test_uids_are_read_where_they_are_given(folder: Path) -> None:
    (folder / "label_uids.txt").write_text("r\nb\n")
    assert lf_xmc.read(folder).labels.uids == ("r", "b")


@pytest.mark.parametrize(("uids", "message"), [("r\n", "more lines"), ("r\nb\nx\n", "fewer lines")])
def test_uids_must_be_as_many_as_texts(folder: Path, uids: str, message: str) -> None:
    (folder / "label_uids.txt").write_text(uids)
    with pytest.raises(InvalidData, match=f"label_raw_texts.txt.*has {message} than label_uids"):
        lf_xmc.read(folder)


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
def test_a_bad_matrix_is_named(folder: Path, content: str, where: str) -> None:
    path = folder / "trn_X_Y.txt"
    path.write_text(content)
    with pytest.raises(InvalidData) as caught:
        lf_xmc.read(folder)
    assert str(caught.value).startswith(f"{path}:{where}")


def test_an_empty_text_is_named(folder: Path) -> None:
    (folder / "label_raw_texts.txt").write_text("red\n \n")
    with pytest.raises(InvalidData, match=r"label_raw_texts\.txt:2: title: the text is empty"):
        lf_xmc.read(folder)


def test_missing_files_are_named(folder: Path) -> None:
    (folder / "tst_X_Y.txt").unlink()
    (folder / "label_raw_texts.txt").unlink()
    with pytest.raises(InvalidData, match=r"missing tst_X_Y\.txt, label_raw_texts\.txt \("):
        lf_xmc.read(folder)


def test_json_wins_where_both_are_whole(folder: Path) -> None:
    (folder / "filter_labels_test.txt").unlink()
    for name in ("trn.json", "tst.json", "lbl.json"):
        (folder / name).write_text('{"uid": "u", "title": "from json"}\n')
    assert lf_xmc.read(folder).labels.texts == ("from json",)
