"""Arrays, texts and checksums of files are checked when they are read."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.core.errors import BundleAltered, BundleMissing
from service.core.files import folder_facts, text_store
from service.core.files.arrays import (
    mapped,
    require_ascending,
    require_finite,
    require_offsets,
    require_within,
)
from service.core.files.folder_facts import FileFacts, file_facts, verify_files
from service.core.files.text_store import TextStore

ROW = np.array([0, 2, 2, 5])
LONG = 3_000_000  # count of numbers that needs more than one block


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.npy"


@pytest.mark.parametrize(
    ("array", "shape", "said"),
    [
        (ROW.astype(np.int32), (None,), r"holds int32 \[4\], expected int64 \[any\]"),
        (ROW.astype(np.float64), (None,), "holds float64"),
        (ROW.reshape(2, 2), (None,), r"holds int64 \[2, 2\]"),
        (np.array(3), (None,), r"holds int64 \[\]"),
        (ROW.astype(">i8"), (None,), "holds >i8"),
        (np.zeros((3, 4), np.int64), (None, 5), r"holds .*, expected int64 \[any, 5\]"),
        (np.asfortranarray(np.zeros((3, 4), np.int64)), (3, 4), "holds int64"),  # by columns
    ],
    ids=range(7),
)
def test_another_type_or_shape_is_refused(
    path: Path, array: np.ndarray, shape: tuple[int | None, ...], said: str
) -> None:
    np.save(path, array)
    with pytest.raises(BundleAltered, match=rf"some\.npy {said}"):
        mapped(path, np.int64, shape)


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00v\x00{'descr': '<i8'"])
def test_a_file_without_an_array_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(BundleAltered, match=r"some\.npy holds no array"):
        mapped(path, np.int64)


def test_numbers_within_bounds(path: Path) -> None:
    require_within(path, ROW, 0, 6)
    require_within(path, np.zeros(0), 0, 0)
    for low, high in ((1, 6), (0, 5)):
        with pytest.raises(BundleAltered, match=r"some\.npy holds numbers from 0 to 5"):
            require_within(path, ROW, low, high)
    with pytest.raises(BundleAltered, match="nan"):
        require_within(path, np.array([1.0, np.nan]), 0, 6)


def test_the_last_number_of_many_and_a_step_between_two_blocks_count(path: Path) -> None:
    many = np.arange(LONG)
    require_within(path, many, 0, LONG)
    with pytest.raises(BundleAltered):
        require_within(path, many, 0, LONG - 1)
    require_ascending(path, many, strictly=True)
    many[-1] = LONG - 2
    require_ascending(path, many, strictly=False)
    with pytest.raises(BundleAltered):
        require_ascending(path, many, strictly=True)
    many[1 << 20] = 0
    with pytest.raises(BundleAltered, match=r"some\.npy is not ascending"):
        require_ascending(path, many, strictly=False)


@pytest.mark.parametrize(
    ("offsets", "end"), [([1, 5], 5), ([0, 4], 5), ([0, 3, 2, 5], 5), ([0, -1, 5], 5), ([], 0)]
)
def test_offsets_rise_from_0_to_the_end(path: Path, offsets: list[int], end: int) -> None:
    require_offsets(path, ROW, end=5)
    with pytest.raises(BundleAltered, match=r"some\.npy"):
        require_offsets(path, np.array(offsets, np.int64), end=end)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_found(path: Path, number: float) -> None:
    vectors = np.full((1024, 2048), 65504, np.float16)  # the largest fp16
    np.save(path, vectors)
    require_finite(path)
    vectors[-1, -1] = number
    np.save(path, vectors)
    with pytest.raises(BundleAltered, match=r"some\.npy holds a number that is not finite"):
        require_finite(path)


# Texts ------------------------------------------------------------------------------------

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def store(folder: Path, *content: str, lookup: bool = True) -> TextStore:
    text_store.write(folder / "store", content, lookup=lookup)
    return TextStore(folder / "store", lookup=lookup)


def test_positions_of_equal_texts_are_found_among_some(tmp_path: Path) -> None:
    kept = store(tmp_path, "tent", "Tent", "zelt", "tent", "", "tents", "tent", lookup=False)
    assert kept.equal_to("tent", np.arange(6)).tolist() == [0, 3]
    assert kept.equal_to("tent", np.array([1, 2, 6])).tolist() == [6]
    assert kept.equal_to("", np.arange(7)).tolist() == [4]
    assert kept.equal_to("tent", np.zeros(0, np.int64)).tolist() == []


@settings(max_examples=60)
@given(st.lists(any_text, max_size=8), any_text)
@example([], "anything")
@example(["", ""], "")
@example(["\U0001f600", "\ufffd", "é"], "\ufffd")  # in another order in UTF-16 than in UTF-8
def test_every_text_is_read_as_written_and_found(content: list[str], other: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        opened = store(Path(folder), *content)
        assert list(opened) == content
        assert len(opened) == len(content)
        with pytest.raises(IndexError):
            opened[len(content)]
        for text in content:
            assert opened[opened.find(text)] == text
        assert [content[place] for place in opened.filled()] == [text for text in content if text]
        assert (opened.find(other) is None) == (other not in content)
        above = opened.order[opened.place_above(other) :].tolist()
        assert [opened[place] for place in above] == sorted(t for t in content if t > other)


def test_find_needs_a_store_with_lookup(tmp_path: Path) -> None:
    opened = store(tmp_path, "a", lookup=False)
    for ask in (opened.find, opened.place_above):
        with pytest.raises(TypeError, match="without lookup"):
            ask("a")


@pytest.mark.parametrize("content", [b"", b"shor", b"longer than it was"])
def test_a_store_whose_size_contradicts_its_offsets_is_refused(
    tmp_path: Path, content: bytes
) -> None:
    store(tmp_path, "short", lookup=False)
    (tmp_path / "store.bin").write_bytes(content)
    with pytest.raises(BundleAltered, match=r"store\.bin has"):
        TextStore(tmp_path / "store")


# Checksums --------------------------------------------------------------------------------


def test_the_message_names_the_file_and_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expected SHA-256 of "abc" is that of FIPS 180-2."""
    (tmp_path / "inner").mkdir()
    file = tmp_path / "inner/file"
    file.write_bytes(b"abc")
    facts = file_facts(tmp_path)
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert facts == {"inner/file": FileFacts(bytes=3, sha256=digest)}
    verify_files(tmp_path, facts)
    file.write_bytes(b"abd")
    with pytest.raises(BundleAltered, match="inner/file differs from its recorded SHA-256"):
        verify_files(tmp_path, facts)
    file.write_bytes(b"ab")
    with pytest.raises(BundleAltered, match="inner/file has 2 bytes instead of the recorded 3"):
        verify_files(tmp_path, facts)
    file.unlink()
    with pytest.raises(BundleMissing, match="inner/file is missing"):
        verify_files(tmp_path, facts)

    def refuse(*_: object) -> None:  # simulated, because root may read every file
        raise PermissionError(13, "Permission denied")

    file.write_bytes(b"abc")
    monkeypatch.setattr(folder_facts.hashlib, "file_digest", refuse)
    with pytest.raises(BundleMissing, match="file cannot be read: Permission denied"):
        verify_files(tmp_path, facts)
