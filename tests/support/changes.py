"""Change a memory as the writer does from events, and build segments without a child process."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from service.core.changes import (
    ChangeLabel,
    DeleteInstance,
    DeleteLabel,
    DeleteRule,
    PutInstance,
    PutItem,
    PutLabel,
    PutRule,
)
from service.core.encoding.encoder import encode
from service.core.index.compaction import SegmentPlan
from service.core.index.device_segment import DeviceSegment
from service.core.index.protocol import Segment
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.rules import Rule
from service.core.types import NewInstance, NewItem, NewLabel, Role
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.vectors import built

ENCODER = TrigramEncoder()


def put(sequence: int, label: NewLabel) -> PutLabel:
    texts = encode(ENCODER, [label.text, *label.aliases, *label.queries], role=Role.LABEL)
    return PutLabel(sequence=sequence, label=label, vectors=texts.astype(np.float16))


def change(sequence: int, label: NewLabel) -> ChangeLabel:
    """Give the label with this id the metadata, dates and boost of `label`."""
    return ChangeLabel.of(label, sequence=sequence, id=label.id)


def delete(sequence: int, label_id: str) -> DeleteLabel:
    return DeleteLabel(sequence=sequence, id=label_id)


def click(
    sequence: int,
    query: str,
    *labels: str,
    weight: float = 1.0,
    at: float | None = None,
    clicks: float | None = None,
) -> PutInstance:
    vectors = encode(ENCODER, [query], role=Role.QUERY).astype(np.float16)
    instance = NewInstance(query=query, labels=labels, weight=weight, at=at, clicks=clicks)
    return PutInstance(sequence=sequence, instance=instance, vectors=vectors)


def unlearn(sequence: int, query: str, *labels: str) -> DeleteInstance:
    return DeleteInstance(sequence=sequence, query=query, labels=labels, trained=True)


def take_back(sequence: int, query: str, *labels: str) -> DeleteInstance:
    return DeleteInstance(sequence=sequence, query=query, labels=labels)


def put_rule(sequence: int, rule: Rule) -> PutRule:
    return PutRule(sequence=sequence, rule=rule)


def delete_rule(sequence: int, rule_id: str) -> DeleteRule:
    return DeleteRule(sequence=sequence, id=rule_id)


def put_item(sequence: int, item_id: str, text: str) -> PutItem:
    vectors = encode(ENCODER, [text], role=Role.ITEM).astype(np.float16)
    return PutItem(sequence=sequence, item=NewItem(id=item_id, text=text), vectors=vectors)


def build(view: View, plan: SegmentPlan, folder: Path) -> Segment | None:
    """Build the segment of a plan in this process; return None if the plan has no rows."""
    if not len(plan.rows):
        return None
    if view.bundle.device is not None:
        return DeviceSegment(view.bundle.device, view.vectors(plan.rows))
    path = folder / f"{plan.first}-{plan.stop}-{view.version}.index"
    return built(view.vectors(plan.rows), path, view.bundle.manifest.index.parameters())


def seal(memory: KnowledgeMemory, folder: Path, plans: Iterable[SegmentPlan] | None = None) -> None:
    """Build and attach the segments of plans, by default of all plans without one."""
    base = memory.view.unbuilt_base_plan() if plans is None else None
    if base is not None:
        assert memory.attach_base(base, build(memory.view, base, folder))
    for plan in list(memory.view.unsealed_plans()) if plans is None else plans:
        assert memory.attach(memory.seal(plan, build(memory.view, plan, folder)))


def seal_items(memory: KnowledgeMemory, folder: Path) -> None:
    """Build and attach the segments of all planned posted items."""
    for plan in list(memory.view.unsealed_item_plans()):
        assert memory.view.items is not None
        vectors = memory.view.items.posted.vectors.read(plan.rows)
        path = folder / f"items-{plan.first}-{plan.stop}-{memory.view.version}.index"
        parameters = memory.view.bundle.manifest.index.parameters()
        segment = built(vectors, path, parameters) if len(plan.rows) else None
        assert memory.attach_items(plan, segment)
