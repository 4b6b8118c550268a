"""A small disk of its own, to be filled and made read-only: a tmpfs, which only root may mount."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

KIB = 2048


class SmallDisk:
    """A mounted folder of two MiB."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def full(self) -> Iterator[None]:
        """Not a byte is left inside the block."""
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
        try:
            yield
        finally:
            filler.unlink()

    @contextmanager
    def readonly(self) -> Iterator[None]:
        """Nothing can be written inside the block; who has a file open for writing prevents it."""
        mount("-o", "remount,ro", self.folder)
        try:
            yield
        finally:
            mount("-o", "remount,rw", self.folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk that is unmounted afterwards."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mount("-t", "tmpfs", "-o", f"size={KIB}k", "tmpfs", folder)
    except (OSError, subprocess.CalledProcessError) as error:
        what = f"NOT TESTED: a small disk cannot be mounted (root may, uid {os.getuid()}): {error}"
        if os.environ.get("CI"):
            pytest.fail(what)
        pytest.skip(what)
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily: a child of the service may be about to end.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(*arguments: object) -> None:
    """Raises `CalledProcessError` where it is not allowed."""
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)
