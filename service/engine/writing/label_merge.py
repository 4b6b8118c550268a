"""PATCH of labels: what is given is merged into the newest state of a label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.core.errors import InvalidInput
from service.core.label import LABEL_FIELDS, facts_of
from service.core.text_identity import distinct_aliases
from service.core.types import NewLabel
from service.settings import Limits


@dataclass(frozen=True, kw_only=True)
class LabelMerge:
    """A change of the label `id`.

    `text` replaces the label's text unless it is None. Each of the `given` fields is merged into
    the label's as `LABEL_FIELDS` says: texts are added, entries of metadata and all other fields
    replaced. None as an entry removes it.
    """

    id: str
    text: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes_texts(self) -> bool:
        """Whether texts are given: they are encoded again, even if they turn out to be the same."""
        texts = (self.given.get(one.name) for one in LABEL_FIELDS if one.has_texts)
        return self.text is not None or any(texts)

    def into(self, label: NewLabel, limits: Limits) -> NewLabel:
        """Return the merged label; raises `InvalidInput` if it grows beyond `limits`."""
        facts = facts_of(label)
        for one in LABEL_FIELDS:
            if one.name in self.given:
                facts[one.name] = one.merge(facts[one.name], self.given[one.name])
        text = label.text if self.text is None else self.text
        facts["aliases"] = distinct_aliases(text, facts["aliases"])
        merged = NewLabel(id=label.id, text=text, **facts)
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
    for one in LABEL_FIELDS:
        for what, (limit, size_of) in one.sizes.items():
            old, size = (size_of(getattr(label, one.name)) for label in (before, merged))
            allowed = getattr(limits, limit)
            if size > max(old, allowed):
                raise InvalidInput(
                    f"the label has {old} {what} and would have {size}; at most {allowed} are"
                    " allowed",
                    field=one.name,
                )
