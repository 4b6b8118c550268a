"""PATCH of a label: the given fields are merged into the newest state of the label.

The merged label is written as a whole, as if it had been posted, so log, replay and snapshots know
of no merging. It is made, and its texts are encoded, from the newest view; the writer, who holds
the log's lock, writes it only if the label is still the same, and else it is made again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from service.core.changes import Item
from service.core.encoding.representer import EncodedItem
from service.core.errors import InvalidInput, KeymatchError, Overloaded
from service.core.types import NewLabel
from service.engine.writing.commit import Commit
from service.engine.writing.operations import Operation, PutLabels
from service.engine.writing.written import Written
from service.settings import Limits

ATTEMPTS = 10  # each fails only where another write to the same label has succeeded


@dataclass(frozen=True, kw_only=True)
class LabelMerge:
    """What changes of the label `id`.

    `text` replaces the label's own unless it is None, `queries` are added, and `metadata` replaces
    single entries; None removes an entry.
    """

    id: str
    text: str | None = None
    queries: tuple[str, ...] = ()
    metadata: Mapping[str, str | None] = field(default_factory=dict)

    def into(self, label: NewLabel, limits: Limits) -> NewLabel:
        """The merged label; raises `InvalidInput` where it grows beyond `limits`."""
        entries = {**label.metadata, **self.metadata}
        merged = NewLabel(
            id=label.id,
            text=label.text if self.text is None else self.text,
            queries=tuple(dict.fromkeys((*label.queries, *self.queries))),
            metadata={name: value for name, value in entries.items() if value is not None},
        )
        _require_allowed(label, merged, limits)
        return merged


@dataclass(frozen=True, kw_only=True)
class MergeIntoLabel:
    """Merge into a label that is `base`; None where no label has the id."""

    merge: LabelMerge
    base: NewLabel | None
    limits: Limits

    @cached_property
    def items(self) -> Sequence[Item]:
        """The merged label, where there is one."""
        with suppress(InvalidInput):  # `plan` says so, unless the request was answered before
            return () if self.base is None else (self.merge.into(self.base, self.limits),)
        return ()

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Add the merged label unless nothing changes.

        Raises `UnknownLabel`, `LabelChanged` where the label is no longer `base`, `InvalidInput` or
        `MemoryFull`.
        """
        commit.draft.labels.require(self.merge.id)
        label = commit.draft.labels.as_posted(self.merge.id)
        if label is None or label != self.base:
            raise LabelChanged("the label has changed since it was read")
        merged = self.merge.into(label, self.limits)
        return PutLabels(labels=(merged,)).plan(commit, encoded_items)


class LabelChanged(KeymatchError):
    """Another write has changed the label that `MergeIntoLabel` was made for."""


async def merge_label(
    merge: LabelMerge,
    *,
    label: Callable[[], NewLabel | None],
    write: Callable[[Operation], Awaitable[Written]],
    limits: Limits,
) -> Written:
    """Merge into the newest state of a label, which `label` returns from the newest view.

    Raises as `write` and `MergeIntoLabel.plan`, and `Overloaded` where other writes to the label
    come between all the time.
    """
    for _ in range(ATTEMPTS):
        with suppress(LabelChanged):
            return await write(MergeIntoLabel(merge=merge, base=label(), limits=limits))
    raise Overloaded("other writes change this label all the time", retry_after=1)


def metadata_bytes(metadata: Mapping[str, str]) -> int:
    """The bytes of names and values in UTF-8."""
    return sum(len(text.encode()) for pair in metadata.items() for text in pair)


def _require_allowed(before: NewLabel, merged: NewLabel, limits: Limits) -> None:
    """Raise `InvalidInput` for what has grown beyond its limit; limits may have been lowered."""
    for what, size, size_before, most in (
        ("queries", len(merged.queries), len(before.queries), limits.label_queries),
        (
            "metadata entries",
            len(merged.metadata),
            len(before.metadata),
            limits.metadata_entries,
        ),
        (
            "metadata bytes",
            metadata_bytes(merged.metadata),
            metadata_bytes(before.metadata),
            limits.metadata_bytes,
        ),
    ):
        if size > max(size_before, most):
            raise InvalidInput(
                f"the label has {size_before} {what} and would have {size}; at most {most} are"
                " allowed",
                field=what.partition(" ")[0],
            )
