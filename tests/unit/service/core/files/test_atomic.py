"""Files and folders appear only when complete, and a failure leaves nothing."""

import os
from pathlib import Path

import pytest

from service.core.errors import InvalidInput
from service.core.files import atomic
from service.core.files.atomic import new_folder, refuse_unwritable, write_file


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


@pytest.mark.parametrize("exception", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_block_leaves_nothing(
    tmp_path: Path, exception: type[BaseException]
) -> None:
    with pytest.raises(exception), new_folder(tmp_path / "bundle") as partial:
        (partial / "file").write_text("half")
        raise exception
    assert entries(tmp_path) == []


def test_an_existing_target_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/mine").write_text("precious")
    with pytest.raises(InvalidInput, match="exists already"), new_folder(tmp_path / "bundle"):
        pytest.fail("the block must not run")
    assert (tmp_path / "bundle/mine").read_text() == "precious"


def test_a_target_that_appears_during_writing_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput), new_folder(tmp_path / "bundle"):
        (tmp_path / "bundle").write_text("someone else's")
    assert (tmp_path / "bundle").read_text() == "someone else's"
    assert entries(tmp_path) == ["bundle"]


def test_a_dangling_link_as_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bundle").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="exists already"), new_folder(tmp_path / "bundle"):
        pytest.fail("the block must not run")


def test_a_parent_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InvalidInput, match=r"file/bundle:? cannot be written"),
        new_folder(tmp_path / "file/bundle"),
    ):
        pytest.fail("the block must not run")


def test_a_file_in_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"file/figures\.json: cannot be written"):
        write_file(tmp_path / "file/figures.json", b"{}")


def test_long_work_can_ask_whether_a_target_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    refuse_unwritable(tmp_path)
    refuse_unwritable(tmp_path / "several/new/folders")
    with pytest.raises(InvalidInput, match=r"deep: cannot be written: .*file is not a folder"):
        refuse_unwritable(tmp_path / "file/deep")
    # Root may write anywhere, so the permission is taken away by hand.
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


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    target = tmp_path / "new" / "progress.json"
    write_file(target, b"first")
    write_file(target, b"second")
    assert target.read_bytes() == b"second"
    assert entries(target.parent) == ["progress.json"]


def test_a_file_that_cannot_be_synced_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "progress.json"
    write_file(target, b"first")

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_file(target, b"second")
    assert target.read_bytes() == b"first"
    assert entries(tmp_path) == ["progress.json"]
