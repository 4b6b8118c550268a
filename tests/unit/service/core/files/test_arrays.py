"""An array with the wanted type and shape is mapped; for any other, the error names the file."""

from pathlib import Path

import numpy as np
import pytest

from service.core.errors import BundleAltered
from service.core.files.arrays import (
    mapped,
    require_ascending,
    require_finite,
    require_offsets,
    require_within,
)

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


def test_a_shape_may_leave_a_length_open(path: Path) -> None:
    np.save(path, np.zeros((3, 4), np.float16))
    assert mapped(path, np.float16, (None, 4)).shape == (3, 4)


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
