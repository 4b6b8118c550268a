"""Small disks that only root can mount.

A tmpfs that a test can fill or make read-only, and an ext4 that turns read-only by an error.
"""

import os
import shutil
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


class FailingDisk:
    """A mounted ext4, in a file, that can meet an error."""

    def __init__(self, folder: Path, image: Path) -> None:
        self.folder, self._image = folder, image

    def mount(self) -> None:
        """Mount it, for the first time or after an error, when no file of it is open any more."""
        mount("-o", "loop,errors=remount-ro", self._image, self.folder)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)

    @property
    def _trigger(self) -> Path:
        [device] = [
            line.split()[0]
            for line in Path("/proc/mounts").read_text().splitlines()
            if line.split()[1] == str(self.folder)
        ]
        return Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error"

    @property
    def can_fail(self) -> bool:
        return self._trigger.exists()

    def fail(self) -> None:
        """Let the file system meet an error: it turns read-only, also for files that are open."""
        self._trigger.write_text("1")


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[FailingDisk]:
    """A disk, mounted; skipped where this machine cannot mount one."""
    folder, image = tmp_path / "failing", tmp_path / "image"
    folder.mkdir()
    program = shutil.which("mke2fs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        reason = "NOT TESTED: there is no mke2fs; install e2fsprogs"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    image.touch()
    os.truncate(image, 32 * 2**20)
    subprocess.run([program, "-q", "-t", "ext4", image], check=True)
    disk = FailingDisk(folder, image)
    try:
        disk.mount()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NOT TESTED: this machine mounts no ext4 (uid {os.getuid()}): {error}")
    try:
        if not disk.can_fail:
            pytest.skip("NOT TESTED: this kernel lets no ext4 meet an error on demand")
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        image.unlink()


def mount(*arguments: object) -> None:
    """Run `mount`; raises `CalledProcessError` if that is not allowed."""
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)
