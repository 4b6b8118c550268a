"""PATCH of labels: what is given is merged into the newest state of a label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from service.core.errors import InvalidInput
from service.core.label_filter import MetadataValue, list_items, metadata_bytes
from service.core.text_identity import distinct_aliases
from service.core.types import NewLabel
from service.settings import Limits


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

    @property
    def changes_texts(self) -> bool:
        """Whether texts are given: they are encoded again, even if they turn out to be the same."""
        return self.text is not None or bool(self.aliases or self.queries)

    def into(self, label: NewLabel, limits: Limits) -> NewLabel:
        """Return the merged label; raises `InvalidInput` if it grows beyond `limits`."""
        entries = {**label.metadata, **self.metadata}
        text = label.text if self.text is None else self.text
        merged = replace(
            label,
            text=text,
            aliases=distinct_aliases(text, (*label.aliases, *self.aliases)),
            queries=tuple(dict.fromkeys((*label.queries, *self.queries))),
            metadata={name: value for name, value in entries.items() if value is not None},
            boost=label.boost if self.boost is None else self.boost,
            starts_at=self.dates.get("starts_at", label.starts_at),
            expires_at=self.dates.get("expires_at", label.expires_at),
        )
        _require_order(merged)
        _require_allowed(label, merged, limits)
        return merged


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
