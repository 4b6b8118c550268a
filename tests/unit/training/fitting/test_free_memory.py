"""The limits of control groups bound the memory of `fit`, by made-up files of both versions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from training.fitting.free_memory import free_bytes

MACHINE = 100_000
Write = Callable[[Mapping[str, str]], Path]


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(available=MACHINE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


@pytest.fixture
def root(tmp_path: Path) -> Write:
    """Write files below the test's own root folder."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def v2(path: str, limit: str, used: str, **more: str) -> dict[str, str]:
    folder = f"sys/fs/cgroup/{path}".rstrip("/")
    files = {f"{folder}/memory.max": limit, f"{folder}/memory.current": used}
    return files | {f"{folder}/memory.{name}": text for name, text in more.items()}


def v1(path: str, limit: str, used: str, **more: str) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory/{path}".rstrip("/")
    files = {f"{folder}/memory.limit_in_bytes": limit, f"{folder}/memory.usage_in_bytes": used}
    return files | {f"{folder}/memory.{name}": text for name, text in more.items()}


TWO, ONE = "0::{}\n", "5:devices:/x\n4:cpu,memory:{}\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        pytest.param(TWO.format("/"), v2("", "9000\n", "2000\n"), 7_000, id="v2"),
        pytest.param(TWO.format("/"), v2("", "max\n", "2000\n"), MACHINE, id="v2 without a limit"),
        pytest.param(TWO.format("/"), v2("", "900000\n", "1\n"), MACHINE, id="more than there is"),
        pytest.param(TWO.format("/"), v2("", "9000", "9500"), 0, id="more used than allowed"),
        pytest.param(
            TWO.format("/"),
            v2("", "9000", "8000", stat="anon 5\ninactive_file 3000\nslab 1\n"),
            4_000,
            id="file cache is given back",
        ),
        pytest.param(
            TWO.format("/pod/box"),
            v2("pod/box", "max", "10") | v2("pod", "5000", "1000") | v2("", "9000", "1000"),
            4_000,
            id="a group above has the limit",
        ),
        pytest.param(
            TWO.format("/host/path"), v2("", "9000", "2000"), 7_000, id="a path of the host"
        ),
        pytest.param(ONE.format("/box"), v1("box", "6000", "1000"), 5_000, id="v1"),
        pytest.param(
            ONE.format("/box"),
            v1("box", "6000", "1000", stat="inactive_file 1\ntotal_inactive_file 500\n"),
            5_500,
            id="v1 file cache",
        ),
        pytest.param(
            ONE.format("/"), v1("", "9223372036854771712", "1"), MACHINE, id="v1 without a limit"
        ),
        pytest.param(ONE.format("/host"), v1("", "6000", "1000"), 5_000, id="v1 path of the host"),
        pytest.param(TWO.format("/"), v2("", "much", "2000"), MACHINE, id="not a number"),
        pytest.param(TWO.format("/"), {}, MACHINE, id="no files"),
    ],
)
def test_the_smaller_of_machine_and_group(
    groups: str, files: Mapping[str, str], free: int, root: Write
) -> None:
    assert free_bytes(root({"proc/self/cgroup": groups, **files})) == free


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) == MACHINE


def test_the_groups_of_this_process() -> None:
    assert 0 <= free_bytes() <= MACHINE
