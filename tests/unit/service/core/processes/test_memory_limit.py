"""What a process may take of memory, by made-up files of both versions of control groups."""

from pathlib import Path

import pytest

from service.core.processes.memory_limit import SHARE_OF_MACHINE, memory_limit

MACHINE = 100_000
MOST = int(SHARE_OF_MACHINE * MACHINE)
V1, V2 = "sys/fs/cgroup/memory/{}memory.limit_in_bytes", "sys/fs/cgroup/{}memory.max"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        pytest.param("0::/\n", {V2.format(""): "9000\n"}, 9_000, id="version 2"),
        pytest.param("0::/\n", {V2.format(""): "max\n"}, MOST, id="version 2 without a limit"),
        pytest.param("0::/\n", {V2.format(""): "900000\n"}, MOST, id="more than there is"),
        pytest.param("0::/\n", {}, MOST, id="no file"),
        pytest.param(
            "0::/pod/one\n",
            {V2.format("pod/one/"): "max", V2.format("pod/"): "7000", V2.format(""): "max"},
            7_000,
            id="the group above has the limit",
        ),
        pytest.param(
            "0::/of/the/host\n", {V2.format(""): "9000"}, 9_000, id="the path of the host"
        ),
        pytest.param(
            "5:devices:/x\n4:cpu,memory:/a\n0::/\n",
            {V1.format("a/"): "8000"},
            8_000,
            id="version 1",
        ),
        pytest.param(
            "4:memory:/\n",
            {V1.format(""): f"{2**63 - 4096}\n"},
            MOST,
            id="version 1 without a limit",
        ),
        pytest.param(None, {}, MOST, id="not Linux"),
    ],
)
def test_the_smallest_limit_counts(
    tmp_path: Path, groups: str | None, files: dict[str, str], expected: int
) -> None:
    named = files if groups is None else {"proc/self/cgroup": groups, **files}
    for name, text in named.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_limit(tmp_path, MACHINE) == expected


def test_this_machine_has_a_limit() -> None:
    assert memory_limit() > 100_000_000
