"""Named parts: only missing parts are made, and a part appears complete or not at all."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.core import work_parts
from service.core.errors import InvalidConfig
from service.core.index.protocol import Progress
from service.core.processes.ray_cluster import Cluster
from service.core.work_parts import WorkPart, run_parts
from tests.support.cluster_here import ClusterHere

NUMBERS = ([3, 1], [2], [5, 4, 6])


def parts_of(*numbers: list[int]) -> list[WorkPart]:
    return [
        WorkPart(name=f"{place}-of-{len(numbers)}", arguments={"numbers": some}, size=len(some))
        for place, some in enumerate(numbers, start=1)
    ]


class Sorting:
    """Writes sorted numbers, and fails at the call `fails`."""

    def __init__(self, fails: int = -1) -> None:
        self.calls, self.fails = 0, fails

    def __call__(self, folder: Path, progress: Progress, *, numbers: list[int]) -> None:
        (folder / "sorted").write_text(str(sorted(numbers)))
        progress(1)
        self.calls += 1
        if self.calls == self.fails:
            raise ZeroDivisionError


class Unshared(ClusterHere):
    """Loses what it makes, like machines that do not share a disk."""

    def results(
        self, function: Callable[..., Any], calls: Iterable[Sequence[Any]], *, cores: int = 1
    ) -> Iterator[Any]:
        for _, folder, *_ in calls:
            yield folder.name


def results(folders: Sequence[Path]) -> list[str]:
    return [(folder / "sorted").read_text() for folder in folders]


@pytest.mark.parametrize("cluster", [None, ClusterHere()])
def test_parts_are_made_once_and_counted(tmp_path: Path, cluster: Cluster | None) -> None:
    sorting, done = Sorting(), list[int]()
    work, parts = tmp_path / "a/work", parts_of(*NUMBERS)
    folders = run_parts(sorting, parts, work=work, cluster=cluster, progress=done.append)
    assert results(folders) == ["[1, 3]", "[2]", "[4, 5, 6]"]
    assert (done[0], done[-1], done) == (0, 6, sorted(done))
    again = run_parts(sorting, parts, work=work, cluster=cluster, progress=done.append)
    assert (again, sorting.calls, done[-1]) == (folders, 3, 6)
    assert sorted(path.name for path in work.iterdir()) == ["1-of-3", "2-of-3", "3-of-3"]


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run_parts(Sorting(fails=2), parts_of(*NUMBERS), work=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["1-of-3"]
    (tmp_path / ".2-of-3.partial-x").mkdir()  # as after a power failure
    sorting, done = Sorting(), list[int]()
    folders = run_parts(sorting, parts_of(*NUMBERS), work=tmp_path, progress=done.append)
    assert (sorting.calls, done[0]) == (2, 2)
    assert results(folders) == ["[1, 3]", "[2]", "[4, 5, 6]"]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda part: (part / "sorted").write_text(""),
        lambda part: (part / "sorted").unlink(),
        *(
            lambda part, content=content: (part / "part.json").write_bytes(content)
            for content in (b"", b"{", b"[]", b'{"digest": 1}', b"null")
        ),
    ],
)
def test_a_damaged_part_is_made_again(tmp_path: Path, change: Callable[[Path], object]) -> None:
    sorting = Sorting()
    run_parts(sorting, parts_of(*NUMBERS), work=tmp_path)
    change(tmp_path / "2-of-3")
    folders = run_parts(sorting, parts_of(*NUMBERS), work=tmp_path)
    assert sorting.calls == 4
    assert results(folders)[1] == "[2]"


def test_a_part_of_other_arguments_is_made_again(tmp_path: Path) -> None:
    sorting = Sorting()
    run_parts(sorting, parts_of(*NUMBERS), work=tmp_path)
    folders = run_parts(sorting, parts_of([3, 1], [7], [5, 4, 6]), work=tmp_path)
    assert sorting.calls == 4
    assert results(folders)[1] == "[7]"


def test_a_worker_that_finished_but_died_costs_nothing(tmp_path: Path) -> None:
    [part], sorting = parts_of([2, 1]), Sorting()
    call = (sorting, tmp_path / part.name, part.digest, part.arguments)
    assert [work_parts._make_there(*call) for _ in range(2)] == [part.name] * 2
    assert sorting.calls == 1


def test_a_folder_that_machines_do_not_share_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_parts, "SEEN_SECONDS", 0.0)
    with pytest.raises(InvalidConfig, match=f"see the folder {tmp_path}: it must lie on a disk"):
        run_parts(Sorting(), parts_of(*NUMBERS), work=tmp_path, cluster=Unshared())
    with pytest.raises(InvalidConfig, match="must lie on a disk that they share"):
        work_parts._make_there(Sorting(), tmp_path / "none" / "1-of-1", "", {"numbers": []})
