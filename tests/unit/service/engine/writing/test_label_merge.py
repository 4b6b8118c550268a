"""A merge is written only if its label did not change meanwhile; otherwise it is merged again."""

import asyncio
from dataclasses import replace

import pytest

from service.core.errors import Overloaded, UnknownLabel
from service.engine.writing.label_merge import (
    ATTEMPTS,
    LabelChanged,
    LabelMerge,
    MergeIntoLabel,
    merge_label,
)
from service.engine.writing.operations import Operation, Written
from service.settings import Limits
from tests.support.writer_desk import AXE, Desk, statuses

MERGE = LabelMerge(id="axe", queries=("serac",))


def test_a_merge_into_a_label_that_has_changed_writes_nothing(desk: Desk) -> None:
    desk.submit([AXE]).result(60)
    for base in (None, replace(AXE, text="ice tool")):
        merge = MergeIntoLabel(merge=MERGE, base=base, limits=Limits())
        with pytest.raises(LabelChanged):
            desk.do(merge).result(60)
    with pytest.raises(UnknownLabel):
        unknown = replace(MERGE, id="nowhere")
        desk.do(MergeIntoLabel(merge=unknown, base=None, limits=Limits())).result(60)
    assert desk.log.last_sequence() == 1


def test_two_merges_of_one_commit_lose_nothing(desk: Desk) -> None:
    desk.submit([AXE]).result(60)
    desk.hold()
    merges = [
        desk.do(MergeIntoLabel(merge=replace(MERGE, queries=(query,)), base=AXE, limits=Limits()))
        for query in ("serac", "crevasse")
    ]
    desk.go_on.set()
    assert statuses(merges[0].result(60)) == [("axe", "updated")]
    with pytest.raises(LabelChanged):
        merges[1].result(60)
    assert desk.memory.view.labels.as_posted("axe") == replace(AXE, queries=("serac",))


def test_a_merge_is_made_again_and_given_up_in_the_end() -> None:
    bases = [replace(AXE, text=f"axe {number}") for number in range(ATTEMPTS)]
    tried = []

    async def write(operation: Operation) -> Written:
        assert isinstance(operation, MergeIntoLabel)
        tried.append(operation.base)
        raise LabelChanged("always")

    left = iter(bases)
    with pytest.raises(Overloaded, match="other writes change this label"):
        asyncio.run(merge_label(MERGE, label=lambda: next(left), write=write, limits=Limits()))
    assert tried == bases
