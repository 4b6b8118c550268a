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
    """A mounted tmpfs of two MiB."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def full(self, *, left: int = 0) -> Iterator[None]:
        """Keep the disk full inside the block, except for `left` pages of 4 KiB."""
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
            os.truncate(filler, filler.stat().st_size - 4096 * left)
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
    """A small disk, unmounted after the test."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mount("-t", "tmpfs", "-o", f"size={KIB}k", "tmpfs", folder)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = f"NOT TESTED: root alone mounts a small disk (uid {os.getuid()}): {error}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily, because a child process of the service may still use it.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class FailingDisk:
    """A mounted ext4 file system, stored in a file, in which an error can be triggered."""

    def __init__(self, folder: Path, image: Path) -> None:
        self.folder, self._image = folder, image

    def mount(self) -> None:
        """Mount it for the first time, or after an error once all of its files are closed."""
        mount("-o", "loop,errors=remount-ro", self._image, self.folder)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)

    @property
    def trigger(self) -> Path:
        """The file that triggers an error if "1" is written to it: the disk turns read-only."""
        mounts = map(str.split, Path("/proc/mounts").read_text().splitlines())
        [device] = [name for name, folder, *_ in mounts if folder == str(self.folder)]
        return Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error"


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[FailingDisk]:
    """A mounted disk; the test is skipped if this machine cannot mount one."""
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
        if not disk.trigger.exists():
            pytest.skip("NOT TESTED: this kernel lets no ext4 meet an error on demand")
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        image.unlink()


def mount(*arguments: object) -> None:
    """Run `mount`; raises `CalledProcessError` if that is not allowed."""
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)
