"""A small disk that a test can fill or make read-only: a tmpfs, which only root can mount."""

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
        """Keep the disk full to the last byte inside the block."""
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
        """Make the disk read-only inside the block; fails while a file is open for writing."""
        mount("-o", "remount,ro", self.folder)
        try:
            yield
        finally:
            mount("-o", "remount,rw", self.folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk, unmounted after the test."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mount("-t", "tmpfs", "-o", f"size={KIB}k", "tmpfs", folder)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (
            f"NOT TESTED: a small disk cannot be mounted (root may, uid {os.getuid()}): {error}"
        )
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily: a child process of the service may still be ending.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(*arguments: object) -> None:
    """Run `mount`; raises `CalledProcessError` if that is not allowed."""
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)
