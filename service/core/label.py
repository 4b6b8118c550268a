"""A label, each of its fields declared once: type, default, limits, descriptions and how it merges.

The bodies of `POST` and `PATCH /labels`, the stored forms (label log, bundle), the answer of `GET
/labels` and the OpenAPI document are derived from the fields of `LabelFacts`. A further field is
one field here, and the code that reads it.
"""

# ruff: noqa: RUF009 (`fact` returns fields of immutable defaults)

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Le
from pydantic import AfterValidator, AllowInfNan

from service.core import times
from service.core.label_filter import Metadata, as_metadata, list_items, metadata_bytes

LARGEST_WEIGHT = 1_000  # a click of this weight outvotes hundreds of equally similar queries
SMALLEST_WEIGHT = float(np.finfo(np.float32).tiny)  # a smaller one would become 0 in the values
Weight = Annotated[
    float,
    Gt(0),
    Le(LARGEST_WEIGHT),
    AllowInfNan(False),
    AfterValidator(lambda weight: max(weight, SMALLEST_WEIGHT)),
]
UNCHANGED = ""  # a date that a merge leaves as it is; null removes it
Sizes = Mapping[str, tuple[str, Callable[[Any], int]]]


def _kept(value: Any) -> Any:
    return value


@dataclass(frozen=True, kw_only=True)
class LabelField:
    """A field of a label beyond its id and text."""

    name: str
    kind: Any  # in a body
    default: Any  # as it is kept
    description: str  # in POST /labels; a name of `Limits` in braces stands for that limit
    changed: str  # the description in PATCH /labels
    answered: str  # the description in answers
    limit: str = ""  # the name in `Limits` of the longest list
    sparse: bool = False  # whether its default is left out: of logs, bundles, answers and digests
    has_texts: bool = False  # whether it holds texts, which are encoded
    answer: Any = None  # the type in answers, unless it is `kind`
    read: Callable[[Any], Any] = _kept  # the value of a body, as it is kept
    stored: Callable[[Any], Any] = _kept  # the value of a log or a bundle, as it is kept
    shown: Callable[[Any], Any] = _kept  # the kept value, as it is answered
    merge: Callable[[Any, Any], Any] = lambda _old, new: new  # kept values -> that of the label
    # What a merge may not make larger than a limit: its name, the limit's, and the size of a value.
    sizes: Sizes = field(default_factory=dict)

    @property
    def in_body(self) -> Any:
        """The default of a body of POST /labels."""
        return list(self.default) if isinstance(self.default, tuple) else self.default

    @property
    def unchanged(self) -> Any:
        """The default of a body of PATCH /labels, which leaves the label's value as it is."""
        if isinstance(self.in_body, list | dict):
            return self.in_body
        return UNCHANGED if self.default is None else None


def fact(default: Any, description: str, **declared: Any) -> Any:
    """Return a field of `LabelFacts` with facts of its `LabelField`."""
    default = {"default_factory": dict} if default == {} else {"default": default}
    return field(**default, metadata={"description": description, **declared})


_DATE: Mapping[str, Any] = {
    "changed": "As in POST /labels; null removes it.",
    "answer": str,
    "sparse": True,
    "stored": times.stored,
    "shown": times.shown,
}


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelFacts:
    """The fields of a label beyond its id and text.

    `aliases` are further texts of the label. None of them equals its text or another alias. The
    label is relevant for its `queries`. From `starts_at` until before `expires_at`, microseconds,
    it is in answers; None sets no end. Labels are ordered by their scores times `boost`.
    """

    aliases: tuple[str, ...] = fact(
        (),
        "Further texts of the label, such as product codes: it is found, matched and spelled by"
        " them like by its text. One that equals the text or an earlier alias is left out.",
        changed="Are added to the label's aliases, which may be at most {label_aliases} together."
        " Post the label again to remove one.",
        answered="Further texts of the label, if it has any.",
        kind=list[str],
        limit="label_aliases",
        sparse=True,
        has_texts=True,
        read=tuple,
        stored=tuple,
        shown=list,
        merge=lambda old, new: (*old, *new),
        sizes={"aliases": ("label_aliases", len)},
    )
    queries: tuple[str, ...] = fact(
        (),
        "Queries known to lead to this label; each becomes an instance.",
        changed="Are added to the label's queries, which may be at most {label_queries} together.",
        answered="Known queries posted with the label; empty for base labels.",
        kind=list[str],
        limit="label_queries",
        has_texts=True,
        read=_distinct,
        stored=tuple,
        shown=list,
        merge=lambda old, new: _distinct((*old, *new)),
        sizes={"queries": ("label_queries", len)},
    )
    metadata: Metadata = fact(
        {},
        "Names, and values that are strings, numbers, booleans or lists of strings: returned with"
        " predictions that `explain`, and what a `filter` reads. In UTF-8, at most"
        " {metadata_bytes} bytes together.",
        changed="Single entries that are added or replaced; null removes an entry. The result is"
        " held to the limits of a label that is posted.",
        answered="As posted with the label.",
        kind=dict[str, Any],
        answer=Mapping[str, str | float | bool | Sequence[str]],
        read=as_metadata,
        stored=as_metadata,
        shown=dict,
        merge=lambda old, new: {
            name: value for name, value in {**old, **new}.items() if value is not None
        },
        sizes={
            "metadata entries": ("metadata_entries", len),
            "metadata list items": ("metadata_entries", list_items),
            "metadata bytes": ("metadata_bytes", metadata_bytes),
        },
    )
    starts_at: int | None = fact(
        None,
        times.STARTS.format("label is in no answer"),
        answered="When it begins to be in answers, if it has a date.",
        kind=times.Start,
        read=times.start_of,
        **_DATE,
    )
    expires_at: int | None = fact(
        None,
        times.EXPIRES.format("label is in no answer"),
        answered="From when on it is in no answer, if it expires.",
        kind=times.End,
        read=times.end_of,
        **_DATE,
    )
    boost: float = fact(
        1.0,
        "Labels are ordered by their score times this factor, such as a bid; scores stay as they"
        " are.",
        changed="Replaces the boost. Default: it stays; 1 removes it.",
        answered="As posted with the label; missing if it is 1.",
        kind=Weight,
        answer=float,
        sparse=True,
    )


LABEL_FIELDS = tuple(
    LabelField(
        name=one.name,
        **{"default": {} if callable(one.default_factory) else one.default, **one.metadata},
    )
    for one in fields(LabelFacts)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class NewLabel(LabelFacts):
    """A posted label. `id` is empty until the writer sets it."""

    id: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Label(NewLabel):
    """A label in the memory."""

    index: int  # column of V: kept when it is replaced, never reused after its deletion
    novel: bool = False  # not in the bundle's training data
    version: int = 0  # the sequence number of its last write, 0 if it was never posted


def to_store(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a label's fields that a log or a bundle stores, in the declared order."""
    return {
        one.name: values[one.name]
        for one in LABEL_FIELDS
        if one.name in values and not (one.sparse and values[one.name] == one.default)
    }


def from_store(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a label's fields as they are kept, but for sparse ones that it lacks.

    Raises `KeyError`, `TypeError` or `ValueError` for a wrong document.
    """
    document = {"metadata": {}, **document}
    there = (one for one in LABEL_FIELDS if one.name in document or not one.sparse)
    return {**document, **{one.name: one.stored(document[one.name]) for one in there}}


def facts_of(label: Any) -> dict[str, Any]:
    """Return the fields of a label beyond its id and text."""
    return {one.name: getattr(label, one.name) for one in LABEL_FIELDS}


def behind_metadata(stored: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a label's fields with `own` ones behind its metadata, as bundles always had them."""
    first = [name for name in ("aliases", "queries", "metadata") if name in stored]
    return {**{name: stored[name] for name in first}, **own, **stored}
