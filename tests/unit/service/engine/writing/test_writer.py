"""The writer commits jobs in groups, answers every future, and writes no job twice or in part."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.core.bundle.bundle import Bundle
from service.core.changes import DeleteLabel, PutLabel
from service.core.encoding.representer import EncodedItem
from service.core.errors import (
    InvalidInput,
    KeyReused,
    LogError,
    MemoryFull,
    NotReady,
    Overloaded,
    RefusedLabels,
    UnknownLabel,
    UnknownLabels,
)
from service.core.label_log import open_log
from service.core.memory.label_table import LabelTable
from service.core.replay import texts_of
from service.core.types import NewInstance, NewLabel
from service.engine.writing.label_merge import LabelMerge
from service.engine.writing.operations import (
    NAMED_LABELS,
    DeleteOne,
    LabelChanged,
    MergeLabels,
    PostInstances,
    PostLabels,
    RequestKey,
    WriteJob,
    Written,
)
from service.settings import Limits
from tests.support.serving import wait_for
from tests.support.tiny.bundles import LABELS
from tests.support.views import alive_rows
from tests.support.writer_desk import AXE, Desk, statuses

SHARED = [HealthCheck.function_scoped_fixture]  # of one desk, whose labels change on and on


def merge(label_id: str, **given: object) -> LabelMerge:
    return LabelMerge(id=label_id, given=given)


MERGE = merge("axe", queries=("serac",))


@pytest.fixture
def desk_of(trigram_bundle: Bundle, tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """`desk_of()` makes a writer with its log and memory."""
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


def test_rows_of_another_encoder_are_made_again(desk: Desk) -> None:
    """A reload may change the encoder between encoding and writing."""
    encoder = desk.loaded.encoder
    [right] = desk.loaded.representer.encode([texts_of(AXE)])
    wrong = EncodedItem(rows=np.full((1, encoder.dimension), 0.25, np.float16))
    for fingerprint, stored in (("another", right), (encoder.fingerprint, wrong)):
        operation = PostLabels(items=(replace(AXE, id=fingerprint),))
        job = WriteJob(operation=operation, encoded_items=[wrong], encoder_fingerprint=fingerprint)
        desk.writer.submit(job).result(60)
        row = desk.memory.view.next_row - 1
        assert np.array_equal(desk.memory.view.vectors(np.array([row])), stored.rows)


def test_a_written_label_is_logged_and_visible_but_not_if_it_changes_nothing(desk: Desk) -> None:
    known = desk.submit([NewLabel(id="", text="camping tent")]).result(60)
    assert (known.version, statuses(known)) == (0, [("tent", "unchanged")])
    written = desk.submit([AXE]).result(60)
    assert (written.version, statuses(written)) == (1, [("axe", "created")])
    again = desk.submit([AXE]).result(60)
    assert (again.version, statuses(again)) == (1, [("axe", "unchanged")])
    assert desk.memory.view.labels.require("axe").text == "ice axe"
    assert desk.memory.view.version == desk.log.last_sequence() == desk.published == 1
    assert desk.writer.lag == 0


def test_jobs_that_wait_share_a_commit_and_see_one_another(desk: Desk) -> None:
    desk.hold()
    other = NewLabel(id="axe", text="ice tool")
    jobs = [desk.submit([label]) for label in (AXE, AXE, other, AXE)]
    desk.go_on.set()
    written = [job.result(60) for job in jobs]
    found = [(one.version, *statuses(one)[0]) for one in written]
    assert found == [
        (2, "axe", "created"),
        (2, "axe", "unchanged"),
        (3, "axe", "updated"),
        (4, "axe", "updated"),
    ]
    assert desk.commits == 2
    assert desk.memory.view.labels.require("axe").text == "ice axe"


@pytest.mark.parametrize(
    ("part", "error"),
    [("log", LogError("no space left")), ("encoder", RuntimeError("positions are out of range"))],
)
def test_a_failing_commit_fails_all_its_jobs_and_no_later_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, part: str, error: Exception
) -> None:
    def fail(*_args: object, **_how: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        if part == "log":
            broken.setattr(desk.log, "exclusive", fail)
        else:
            broken.setattr(desk.loaded.encoder, "embed", fail)
        with pytest.raises(type(error), match=str(error)):
            desk.submit([AXE]).result(60)
    # `health` does not blame a defect on the log.
    assert desk.writer.health.cause == (str(error) if part == "log" else "")
    assert desk.memory.view.version == 0
    assert desk.writer.alive
    assert desk.submit([AXE]).result(60).version == 1


def test_too_many_waiting_labels_are_refused_until_they_are_written(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(waiting=2)
    desk.hold()
    second = desk.submit([AXE])
    with pytest.raises(Overloaded):
        desk.submit([NewLabel(id="third", text="third")])
    desk.go_on.set()
    second.result(60)
    many = [NewLabel(id=str(number), text="text") for number in range(5)]
    assert desk.submit(many).result(60).version == 7  # larger than the queue, but alone


def test_who_has_an_answer_may_write_again_at_once(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(waiting=1)
    again: list[Future[Written]] = []
    desk.hold()
    # The writer's thread calls this when it sets the result, before it does anything else.
    desk.first.add_done_callback(lambda _: again.append(desk.submit([AXE])))
    desk.go_on.set()
    desk.first.result(60)
    wait_for(lambda: again)
    assert again[0].result(60).version == 2


def test_closing_writes_what_was_admitted_and_takes_no_more(desk: Desk) -> None:
    desk.hold()
    jobs = [desk.submit([NewLabel(id=str(number), text="text")]) for number in range(9)]
    closing = threading.Thread(target=desk.writer.close)
    closing.start()
    wait_for(lambda: not desk.writer.alive)
    with pytest.raises(NotReady):
        desk.submit([AXE])
    desk.go_on.set()
    closing.join()
    assert [job.result(0).version for job in jobs] == list(range(2, 11))
    assert desk.first.result(0).version == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dying_thread_answers_everybody(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.hold()

    def die(*_args: object) -> None:
        raise SystemExit

    monkeypatch.setattr(desk.memory, "draft", die)
    waiting = [desk.submit([NewLabel(id=str(number), text="text")]) for number in range(3)]
    desk.go_on.set()
    for job in (desk.first, *waiting):
        with pytest.raises(NotReady):
            job.result(60)
    assert not desk.writer.alive
    with pytest.raises(NotReady):
        desk.submit([AXE])


def test_a_repeated_request_gets_its_first_answer_and_changes_nothing(desk: Desk) -> None:
    key, other = RequestKey(key="k", digest="one"), RequestKey(key="other", digest="one")
    desk.hold()
    twice = [desk.submit([AXE], key) for _ in range(2)]  # two jobs of one commit are one request
    desk.go_on.set()
    first, second = [job.result(60) for job in twice]
    assert first == second and statuses(first) == [("axe", "created")]
    assert statuses(desk.submit([AXE], other).result(60)) == [("axe", "unchanged")]
    desk.submit([NewLabel(id="axe", text="ice tool")]).result(60)
    assert desk.submit([AXE], key).result(60) == first
    assert statuses(desk.submit([AXE], other).result(60)) == [("axe", "unchanged")]
    assert desk.memory.view.labels.require("axe").text == "ice tool"
    with pytest.raises(KeyReused):
        desk.submit([AXE], RequestKey(key="k", digest="two")).result(60)
    assert desk.log.last_sequence() == 3


def test_a_refused_operation_fails_alone_and_leaves_nothing(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(live_rows=3)
    desk.hold()
    known = NewInstance(query="ice", labels=("first",))
    unknown = NewInstance(query="snow", labels=("first", "nowhere"))
    jobs = [
        desk.do(PostInstances(items=(known, unknown))),
        desk.do(PostInstances(items=(known,))),
        desk.do(DeleteOne(change=DeleteLabel, id="nowhere")),
        desk.submit([NewLabel(id="large", text="large", queries=("a", "b"))]),  # there is no room
    ]
    desk.go_on.set()
    with pytest.raises(UnknownLabels) as refused:
        jobs[0].result(60)
    assert [field for field, _ in refused.value.fields] == ["instances.1.labels.1"]
    assert (jobs[1].result(60).version, jobs[1].result(60).accepted) == (2, 1)
    for job, error in ((jobs[2], UnknownLabel), (jobs[3], MemoryFull)):
        with pytest.raises(error):
            job.result(60)
    assert desk.memory.view.labels.get("large") is None
    assert desk.do(PostInstances(items=(known,))).result(60).version == 2  # nothing new is logged


def test_no_more_unknown_labels_are_looked_for_than_are_named(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    column = LabelTable.column
    monkeypatch.setattr(
        LabelTable, "column", lambda self, name: looked_up.append(name) or column(self, name)
    )
    labels = tuple(f"unknown{number}" for number in range(1_000))
    refused = desk.do(PostInstances(items=(NewInstance(query="snow", labels=labels),)))
    with pytest.raises(UnknownLabels) as error:
        refused.result(60)
    assert len(looked_up) == len(error.value.fields) == NAMED_LABELS


def test_what_another_process_wrote_is_applied_before_and_when_woken(desk: Desk) -> None:
    other = open_log(Path(desk.log.place).parent)
    try:
        for number, name in enumerate(("a", "b")):
            with other.exclusive() as appending:
                label = NewLabel(id=name, text=name)
                [encoded] = desk.loaded.representer.encode([texts_of(label)])
                fingerprint = desk.loaded.representer.fingerprint
                change = PutLabel(sequence=0, label=label, vectors=encoded.rows)
                appending.append([change], encoder=fingerprint)
            if number == 0:
                assert desk.submit([AXE]).result(60).version == 2
            else:
                desk.writer.wake()
                wait_for(lambda: desk.memory.view.version == 3)
    finally:
        other.close()
    labels = desk.memory.view.labels
    assert [labels.require(name).version for name in ("a", "axe", "b")] == [1, 2, 3]


def test_the_writer_decides_the_id_of_a_text_and_the_log_keeps_it(desk: Desk) -> None:
    """The log keeps it because a replay over other labels must find the id that was answered."""
    desk.hold()
    posted = [  # id, text, and the answer
        ("", "Camping  TENT", ("tent", "updated")),
        ("x1", "Kayak", ("x1", "created")),
        ("", "kayak", ("x1", "updated")),
        ("", "New Thing", ("new thing", "created")),
        ("", "new thing", ("new thing", "updated")),
    ]
    jobs = [desk.submit([NewLabel(id=given, text=text)]) for given, text, _ in posted]
    desk.go_on.set()
    assert [statuses(job.result(60))[0] for job in jobs] == [answer for *_, answer in posted]
    logged = [(event.body["id"], event.body["text"]) for event in desk.log.read(after=1)]
    assert logged == [(answer[0], text) for _, text, answer in posted]


# Merges: with new texts only if the label still has the texts that were encoded ----------------


def merged(desk: Desk, *merges: LabelMerge) -> MergeLabels:
    return MergeLabels.of(merges, desk.memory.view.labels, limits=Limits(), tenant=None)


def test_a_merge_into_texts_that_have_changed_writes_nothing(desk: Desk) -> None:
    unknown = merged(desk, MERGE)
    with pytest.raises(RefusedLabels) as refused:
        desk.do(unknown).result(60)
    assert isinstance(refused.value.errors[0], UnknownLabel)
    desk.submit([AXE]).result(60)
    known = merged(desk, MERGE)
    desk.submit([replace(AXE, text="ice tool")]).result(60)
    for operation in (unknown, known):
        with pytest.raises(LabelChanged):
            desk.do(operation).result(60)
    assert desk.log.last_sequence() == 2


def test_two_merges_of_one_commit_lose_nothing(desk: Desk) -> None:
    desk.submit([AXE]).result(60)
    desk.hold()
    merges = [
        desk.do(merged(desk, merge("axe", queries=(query,)))) for query in ("serac", "crevasse")
    ]
    prices = [desk.do(merged(desk, merge("axe", metadata={name: 1}))) for name in ("a", "b")]
    desk.go_on.set()
    assert statuses(merges[0].result(60)) == [("axe", "updated")]
    with pytest.raises(LabelChanged):
        merges[1].result(60)
    assert [statuses(price.result(60)) for price in prices] == [[("axe", "updated")]] * 2
    wanted = replace(AXE, queries=("serac",), metadata={"a": 1, "b": 1})
    assert desk.memory.view.labels.as_posted("axe") == wanted


def test_merges_of_one_request_build_on_each_other(desk: Desk) -> None:
    desk.submit([AXE]).result(60)
    merges = [
        merge("axe", queries=("serac",), metadata={"a": 1}),
        merge("axe", metadata={"b": 2}),
        merge("tent", boost=2.0),
        merge("axe", aliases=("XK-44",), metadata={"a": None}),
        merge("axe", metadata={"b": 2}),
    ]
    found = statuses(desk.do(merged(desk, *merges)).result(60))
    assert [status for _, status in found] == ["updated"] * 4 + ["unchanged"]
    wanted = replace(AXE, queries=("serac",), aliases=("XK-44",), metadata={"b": 2})
    assert desk.memory.view.labels.as_posted("axe") == wanted
    assert desk.memory.view.labels.require("tent").boost == 2.0


@given(
    given=st.lists(
        st.builds(
            LabelMerge,
            id=st.sampled_from(["axe", "tent", "lamp"]),
            given=st.fixed_dictionaries(
                {},
                optional={
                    "metadata": st.dictionaries(
                        st.sampled_from("abc"), st.sampled_from([None, 1, True, "x"])
                    ),
                    "starts_at": st.sampled_from([None, 4e9, 5e9]),
                    "expires_at": st.sampled_from([None, 4e9, 5e9]),
                    "boost": st.sampled_from([1.0, 2.0]),
                },
            ),
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=20, deadline=None, suppress_health_check=SHARED)
def test_a_merge_without_texts_is_that_of_a_posted_label_and_encodes_nothing(
    desk: Desk, given: list[LabelMerge]
) -> None:
    """What such merges leave equals the whole labels, which are merged one after the other."""
    desk.submit([AXE]).result(60)
    wanted = {one: desk.memory.view.labels.as_posted(one) for one in ("axe", "tent", "lamp")}
    rows = alive_rows(desk.memory.view).tolist()
    refused = False
    for merge in given:
        known = wanted[merge.id]
        assert known is not None
        try:
            wanted[merge.id] = merge.into(known, Limits())
        except InvalidInput:  # it would expire before it starts
            refused = True
    with encoding_nothing(desk):
        if refused:
            with pytest.raises(RefusedLabels):
                desk.do(merged(desk, *given)).result(60)
            return
        desk.do(merged(desk, *given)).result(60)
    labels = desk.memory.view.labels
    assert {one: labels.as_posted(one) for one in wanted} == wanted
    assert alive_rows(desk.memory.view).tolist() == rows


@contextmanager
def encoding_nothing(desk: Desk) -> Iterator[None]:
    """Fail if the desk's encoder gets a text within the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(desk.loaded.encoder, "embed", None)
        yield


def test_a_full_memory_takes_changes_of_its_own_labels_alone(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(live_bytes=5_500)
    desk.submit([AXE]).result(60)
    for price in range(20):  # replaces the one before
        desk.do(merged(desk, merge("axe", metadata={"price": price}))).result(60)
    filled = [f"{name}-{number}" for number in range(4) for name in ("tag", "price", "bid")]
    with pytest.raises(MemoryFull):
        desk.do(merged(desk, merge("axe", metadata=dict.fromkeys(filled, 1)))).result(60)
    with pytest.raises(MemoryFull):  # labels of the bundle are held by the memory once changed
        desk.do(merged(desk, *(merge(one, boost=2.0) for one in LABELS))).result(60)
    assert desk.memory.view.labels.require("axe").metadata == {"price": 19}
