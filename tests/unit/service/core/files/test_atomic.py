"""Files and folders appear only when complete, and a failure leaves nothing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from service.core.errors import InvalidData, InvalidInput, Unwritable
from service.core.files import atomic
from service.core.files.atomic import new_folder, refuse_unwritable, write_file, writing
from tests.support.disks import SmallDisk
from tests.support.disks import small_disk as small_disk


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_when_its_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "bundle"
    with new_folder(target) as partial:
        (partial / "inner").mkdir()
        (partial / "inner/file").write_text("content")
        assert not target.exists()
        assert partial.parent == target.parent
        assert partial.name.startswith(".bundle.partial-")
    assert (target / "inner/file").read_text() == "content"
    assert entries(target.parent) == ["bundle"]


@pytest.mark.parametrize("exception", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_block_leaves_nothing(
    tmp_path: Path, exception: type[BaseException]
) -> None:
    with pytest.raises(exception), new_folder(tmp_path / "bundle") as partial:
        (partial / "file").write_text("half")
        raise exception
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("folder", "folder: exists already"),
        ("dangling", "dangling: exists already"),
        ("file/bundle", r"file/bundle:? cannot be written"),
    ],
)
def test_an_existing_target_or_an_unwritable_parent_is_refused(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/mine").write_text("precious")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=said), new_folder(tmp_path / name):
        pytest.fail("the block must not run")
    assert (tmp_path / "folder/mine").read_text() == "precious"
    with pytest.raises(InvalidInput, match=r"file/figures\.json: cannot be written"):
        write_file(tmp_path / "file/figures.json", b"{}")


def test_a_target_that_appears_during_writing_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput), new_folder(tmp_path / "bundle"):
        (tmp_path / "bundle").write_text("someone else's")
    assert (tmp_path / "bundle").read_text() == "someone else's"
    assert entries(tmp_path) == ["bundle"]


def test_long_work_can_ask_whether_a_target_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    refuse_unwritable(tmp_path)
    refuse_unwritable(tmp_path / "several/new/folders")
    with pytest.raises(InvalidInput, match=r"deep: cannot be written: .*file is not a folder"):
        refuse_unwritable(tmp_path / "file/deep")
    # Root may write anywhere, so the missing permission is simulated.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InvalidInput, match=r"deep: cannot be written: .* may not be written to"):
        refuse_unwritable(tmp_path / "deep")
    assert entries(tmp_path) == ["file"]


def test_everything_is_synced_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    target = tmp_path / "bundle"
    real = atomic.sync
    monkeypatch.setattr(
        atomic, "sync", lambda path: (synced.append((path.name, target.exists())), real(path))
    )
    with new_folder(target) as partial:
        (partial / "a").mkdir()
        (partial / "a/file").write_text("x")
    before, after = synced[:-1], synced[-1]
    assert [name for name, _ in before] == ["a", "file", partial.name]
    assert not any(visible for _, visible in before)
    assert after == (tmp_path.name, True)


def test_a_file_is_replaced_in_one_step_once_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new" / "progress.json"
    write_file(target, b"first")
    write_file(target, b"second")

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(Unwritable, match=r"progress\.json: cannot be written: no space"):
        write_file(target, b"third")
    assert target.read_bytes() == b"second"
    assert entries(target.parent) == ["progress.json"]


TEXTS = {f"text {number:100d}": number for number in range(30_000)}
ARRAY = np.zeros((1_000, 1_000), np.float32)  # four MB


def write_index(path: Path) -> None:
    index = faiss.IndexFlatIP(1_000)
    index.add(ARRAY)
    faiss.write_index(index, str(path))


# Each of these reports a full disk differently. Few of the errors name a path, one names the wrong
# file, and some are no `OSError`.
WRITERS: dict[str, Callable[[Path], object]] = {
    "python": lambda path: path.write_bytes(ARRAY.tobytes()),
    "keymatch": lambda path: write_file(path, ARRAY.tobytes()),  # names the file itself
    "copy": lambda path: shutil.copyfile(os.path.realpath("/proc/self/exe"), path),
    "numpy": lambda path: np.save(path, ARRAY),
    "faiss": write_index,
    "safetensors": lambda path: save_file({"keys": ARRAY}, path),
    "tokenizers": lambda path: Tokenizer(WordLevel(TEXTS, unk_token="")).save(str(path)),
    "pyarrow": lambda path: parquet.write_table(pyarrow.table({"a": list(TEXTS)}), path),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_named_whoever_writes(small_disk: SmallDisk, writer: str) -> None:
    target = small_disk.folder / "bundle"
    with (
        small_disk.full(left=4),
        pytest.raises(Unwritable) as raised,
        new_folder(target) as partial,
    ):
        WRITERS[writer](partial / "file.npy")
    assert str(raised.value) == f"{target}: cannot be written: No space left on device"
    assert entries(small_disk.folder) == []


def test_a_full_temporary_folder_is_named(
    small_disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(small_disk.folder))
    with (
        small_disk.full(),
        pytest.raises(Unwritable, match=rf"^{small_disk.folder}: cannot be written: No space"),
        new_folder(tmp_path / "bundle"),
        (small_disk.folder / "scratch").open("wb") as file,
    ):
        file.write(bytes(10_000))


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, "Permission denied", "/another/file"),
        ConnectionResetError(104, "reset"),
        ValueError("x"),
        InvalidData("a", "b"),
    ],
)
def test_other_errors_in_the_block_pass_unchanged(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as raised, writing(tmp_path / "target"):
        raise error
    assert raised.value is error
