"""The single writer: group commit, every future answered, nothing written twice or in part."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.core.bundle import Bundle
from service.core.errors import LogError, MemoryFull, NotReady, Overloaded
from service.core.label_log import LabelLog
from service.core.memory import KnowledgeMemory, MemoryLimits
from service.core.types import NewLabel
from service.telemetry import Telemetry
from service.writer import Writer, Written
from tests.support.serving import wait_for
from tests.support.tiny_encoder import TrigramEncoder

AXE = NewLabel(id="axe", text="ice axe")


class Desk:
    """A writer with its log and memory; `hold` keeps commits from starting."""

    def __init__(self, bundle: Bundle, state: Path, *, live_rows: int = 100, waiting: int = 100):
        self.memory = KnowledgeMemory(bundle, MemoryLimits(live_rows=live_rows))
        self.log = LabelLog(state)
        self.commits: list[int] = []
        self.published = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._append, self.log.append = self.log.append, self._counted
        self.writer = Writer(
            log=self.log,
            memory=self.memory,
            encoder=TrigramEncoder(),
            telemetry=Telemetry(),
            queue_labels=waiting,
            published=self._count,
        )

    def _counted(self, events, **how):
        self.commits.append(len(events))
        assert self.go_on.wait(60)
        return self._append(events, **how)

    def _count(self) -> None:
        self.published += 1

    def hold(self) -> None:
        """Let the writer begin a commit of a first label and stop there."""
        self.go_on.clear()
        self.first = self.writer.submit([NewLabel(id="first", text="first")])
        wait_for(lambda: self.commits)

    def close(self) -> None:
        self.go_on.set()
        self.writer.close()
        self.log.close()


@pytest.fixture
def desk_of(trigram_bundle: Bundle, tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []

    def make(**limits: int) -> Desk:
        made.append(Desk(trigram_bundle, tmp_path / "state", **limits))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


@pytest.fixture
def desk(desk_of: Callable[..., Desk]) -> Desk:
    return desk_of()


def fates(written: Written) -> list[tuple[str, str]]:
    return [(label.id, label.status) for label in written.labels]


def test_a_written_label_is_logged_and_visible(desk: Desk) -> None:
    written = desk.writer.submit([AXE]).result(60)
    assert (written.version, fates(written)) == (1, [("axe", "created")])
    assert desk.memory.view.version == desk.log.last_sequence == 1
    assert desk.memory.view.labels.require("axe").text == "ice axe"
    assert (desk.writer.lag, desk.published) == (0, 1)


def test_what_changes_nothing_is_not_logged(desk: Desk) -> None:
    desk.writer.submit([AXE]).result(60)
    again = desk.writer.submit([AXE]).result(60)
    assert (again.version, fates(again)) == (1, [("axe", "unchanged")])
    assert desk.log.last_sequence == 1
    assert desk.published == 1


def test_jobs_that_wait_share_a_commit_and_see_one_another(desk: Desk) -> None:
    desk.hold()
    other = NewLabel(id="axe", text="ice tool")
    jobs = [desk.writer.submit([label]) for label in (AXE, AXE, other, AXE)]
    desk.go_on.set()
    written = [job.result(60) for job in jobs]
    assert [fates(one)[0][1] for one in written] == ["created", "unchanged", "updated", "updated"]
    assert {one.version for one in written} == {4}
    assert desk.commits == [1, 3]
    assert desk.memory.view.labels.require("axe").text == "ice axe"


def test_a_failing_commit_fails_all_its_jobs_and_no_later_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_how: object) -> None:
        raise LogError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(desk.log, "append", full)
        with pytest.raises(LogError):
            desk.writer.submit([AXE]).result(60)
    assert desk.memory.view.version == 0
    assert desk.writer.alive
    assert desk.writer.submit([AXE]).result(60).version == 1


def test_a_job_without_room_fails_alone(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(live_rows=3)
    desk.hold()
    large = NewLabel(id="large", text="large", queries=("a", "b", "c"))
    small = [desk.writer.submit([NewLabel(id=name, text=name)]) for name in ("x", "y")]
    too_large = desk.writer.submit([large])
    desk.go_on.set()
    assert {job.result(60).version for job in small} == {3}
    with pytest.raises(MemoryFull):
        too_large.result(60)
    assert desk.memory.view.labels.get("large") is None
    assert desk.log.last_sequence == 3


def test_too_many_waiting_labels_are_refused_until_they_are_written(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(waiting=2)
    desk.hold()
    second = desk.writer.submit([AXE])
    with pytest.raises(Overloaded):
        desk.writer.submit([NewLabel(id="third", text="third")])
    desk.go_on.set()
    second.result(60)
    many = [NewLabel(id=str(number), text="text") for number in range(5)]
    wait_for(lambda: not desk.writer._waiting)
    assert desk.writer.submit(many).result(60).version == 7  # larger than the queue, but alone


def test_closing_writes_what_was_admitted_and_takes_no_more(desk: Desk) -> None:
    desk.hold()
    jobs = [desk.writer.submit([NewLabel(id=str(number), text="text")]) for number in range(9)]
    closing = threading.Thread(target=desk.writer.close)
    closing.start()
    wait_for(lambda: not desk.writer.alive)
    with pytest.raises(NotReady):
        desk.writer.submit([AXE])
    desk.go_on.set()
    closing.join()
    assert {job.result(0).version for job in jobs} == {10}
    assert desk.first.result(0).version == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dying_thread_answers_everybody(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.hold()

    def die(*_args: object) -> None:
        raise SystemExit

    monkeypatch.setattr(desk.memory, "apply", die)
    waiting = [desk.writer.submit([NewLabel(id=str(number), text="text")]) for number in range(3)]
    desk.go_on.set()
    for job in (desk.first, *waiting):
        with pytest.raises(NotReady):
            job.result(60)
    assert not desk.writer.alive
    with pytest.raises(NotReady):
        desk.writer.submit([AXE])
