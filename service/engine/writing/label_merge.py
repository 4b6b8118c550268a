"""PATCH of a label: the given fields are merged into the newest state of the label.

The merged label is written as a whole, like a posted one, so log, replay and snapshots need no
merging. It is merged and encoded from the newest view. The writer, which holds the log's lock,
writes it only if the label is still the same. Otherwise the merge is repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from service.core.changes import Posted
from service.core.encoding.representer import EncodedItem
from service.core.errors import InvalidInput, KeymatchError, Overloaded
from service.core.label_filter import MetadataValue, list_items, metadata_bytes
from service.core.tenant import Tenant
from service.core.text_identity import distinct_aliases
from service.core.types import NewLabel
from service.engine.writing.operations import Commit, Operation, PostLabels, Written
from service.settings import Limits

ATTEMPTS = 10  # each fails only if another write to the same label has succeeded


@dataclass(frozen=True, kw_only=True)
class LabelMerge:
    """A change of the label `id`.

    `text` replaces the label's text unless it is None. `aliases` and `queries` are added.
    `metadata` replaces single entries; None removes an entry. So do `dates` with `starts_at` and
    `expires_at`. `boost` replaces the label's boost unless it is None.
    """

    id: str
    text: str | None = None
    aliases: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    metadata: Mapping[str, MetadataValue | None] = field(default_factory=dict)
    dates: Mapping[str, int | None] = field(default_factory=dict)
    boost: float | None = None

    def into(self, label: NewLabel, limits: Limits) -> NewLabel:
        """Return the merged label; raises `InvalidInput` if it grows beyond `limits`."""
        entries = {**label.metadata, **self.metadata}
        text = label.text if self.text is None else self.text
        merged = NewLabel(
            id=label.id,
            text=text,
            aliases=distinct_aliases(text, (*label.aliases, *self.aliases)),
            queries=tuple(dict.fromkeys((*label.queries, *self.queries))),
            metadata={name: value for name, value in entries.items() if value is not None},
            starts_at=self.dates.get("starts_at", label.starts_at),
            expires_at=self.dates.get("expires_at", label.expires_at),
            boost=label.boost if self.boost is None else self.boost,
        )
        _require_order(merged)
        _require_allowed(label, merged, limits)
        return merged


@dataclass(frozen=True, kw_only=True)
class MergeIntoLabel:
    """Merge into the tenant's label `base`; it is None if no label has the id."""

    merge: LabelMerge
    base: NewLabel | None
    limits: Limits
    tenant: Tenant | None = None

    @cached_property
    def items(self) -> Sequence[Posted]:
        """The merged label, if there is one."""
        with suppress(InvalidInput):  # `plan` raises it, unless the request was answered before
            return () if self.base is None else (self.merge.into(self.base, self.limits),)
        return ()

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Add the merged label unless nothing changes.

        Raises `UnknownLabel`, `LabelChanged` if the label is no longer `base`, `InvalidInput` or
        `MemoryFull`.
        """
        table = commit.draft.labels.of(self.tenant)
        table.require(self.merge.id)
        label = table.as_posted(self.merge.id)
        if label is None or label != self.base:
            raise LabelChanged("the label has changed since it was read")
        merged = self.merge.into(label, self.limits)
        return PostLabels(items=(merged,), tenant=self.tenant).plan(commit, encoded_items)


class LabelChanged(KeymatchError):
    """Another write has changed the label that `MergeIntoLabel` was made for."""


async def merge_label(
    merge: LabelMerge,
    *,
    label: Callable[[], NewLabel | None],
    write: Callable[[Operation], Awaitable[Written]],
    limits: Limits,
    tenant: Tenant | None = None,
) -> Written:
    """Merge into the newest state of a tenant's label; `label` returns it from the newest view.

    Raises as `write` and `MergeIntoLabel.plan`, and `Overloaded` if other writes changed the label
    before each attempt.
    """
    for _ in range(ATTEMPTS):
        with suppress(LabelChanged):
            operation = MergeIntoLabel(merge=merge, base=label(), limits=limits, tenant=tenant)
            return await write(operation)
    raise Overloaded("other writes change this label all the time", retry_after=1)


def _require_order(label: NewLabel) -> None:
    """Raise `InvalidInput` for a label that expires before it starts."""
    starts_at, expires_at = label.starts_at, label.expires_at
    if starts_at is not None and expires_at is not None and expires_at <= starts_at:
        raise InvalidInput("must be after `starts_at`", field="expires_at")


def _require_allowed(before: NewLabel, merged: NewLabel, limits: Limits) -> None:
    """Raise `InvalidInput` if a size grows beyond its limit; an earlier excess is allowed."""
    entries = limits.metadata_entries
    most = (limits.label_aliases, limits.label_queries, entries, entries, limits.metadata_bytes)
    for (what, size), old, allowed in zip(
        _sizes(merged).items(), _sizes(before).values(), most, strict=True
    ):
        if size > max(old, allowed):
            raise InvalidInput(
                f"the label has {old} {what} and would have {size}; at most {allowed} are allowed",
                field=what.partition(" ")[0],
            )


def _sizes(label: NewLabel) -> dict[str, int]:
    return {
        "aliases": len(label.aliases),
        "queries": len(label.queries),
        "metadata entries": len(label.metadata),
        "metadata list items": list_items(label.metadata),
        "metadata bytes": metadata_bytes(label.metadata),
    }
