"""Request bodies and query strings: what all have in common. Each resource declares its own.

Requests are strict: no unknown field, no number instead of a string, no string instead of a number.
A class declares its fields once. Where a bound is one of the configured `Limits`, it has a `Bound`,
and `limited` returns the class under the limits of this service.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from annotated_types import Le, Len, MaxLen
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    create_model,
)

from service.core.errors import InvalidInput, echoed
from service.core.label_filter import GROUPS
from service.core.page_cursor import PageCursor
from service.core.text_identity import MOST_ID_CHARACTERS, identity, readable
from service.settings import Limits

# The names that `BundleDirectory.path` accepts.
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAMES = (
    "must be a folder's name: 1 to 128 letters, digits, '.', '_' and '-', first a letter or digit"
)
DEFAULT_ID = (
    "Default: that of the known {0} with the same text, whatever its case, spaces and Unicode form."
    " A new {0} gets its text in NFKC, case-folded, with single spaces; what is long ends with a"
    " hash, and with a number where another text has this id."
)
Body = TypeVar("Body", bound="StrictModel")
Entry = TypeVar("Entry")


class StrictModel(BaseModel):
    """A request body or query string."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    # Fields added in a later version. With their default value they do not count for an idempotency
    # key, so a request repeated after an upgrade is still the same.
    later: ClassVar[frozenset[str]] = frozenset()


@dataclass(frozen=True)
class Bound:
    """Bounds and checks of a type that depend on the limits."""

    under: Callable[[Limits], Iterable[Any]]


def at_most(limit: str, *, least: int = 0) -> Bound:
    """Return the bound of a length that `Limits` has as `limit`; `least` are always allowed."""
    return Bound(lambda limits: [MaxLen(max(least, getattr(limits, limit)))])


def up_to(limit: str) -> Bound:
    """Return the bound of a number that `Limits` has as `limit`."""
    return Bound(lambda limits: [Le(getattr(limits, limit))])


def distinct(limit: str) -> tuple[Any, ...]:
    """Return the bounds of a list with entries that have ids, each at most once."""
    return (
        Bound(lambda limits: [Len(1, getattr(limits, limit))]),
        AfterValidator(_refuse_repeated),
    )


def text_type(limits: Limits, *, least: int = 0) -> Any:
    """Return the type of a query, a label's text or its id: trimmed, readable, not too long.

    Up to `least` characters are allowed even if the limit is lower.
    """
    return Annotated[str, *_text(limits, least), AfterValidator(readable)]


def _text(limits: Limits, least: int) -> Iterator[StringConstraints]:
    most = max(least, limits.query_characters)
    yield StringConstraints(strip_whitespace=True, min_length=1, max_length=most)


Text = Annotated[str, Bound(lambda limits: _text(limits, 0)), AfterValidator(readable)]
# The id of an existing label may be as long as a posted one, or one made from a text.
KnownId = Annotated[
    str, Bound(lambda limits: _text(limits, MOST_ID_CHARACTERS)), AfterValidator(readable)
]
FilterGroup = Annotated[dict[str, Any], MaxLen(len(GROUPS))]


@cache
def limited(model: type[Body], limits: Limits) -> type[Body]:
    """Return a model under the configured limits; its descriptions may name any of them."""
    hints = hints_of(model, include_extras=True)
    fields: dict[str, Any] = {}
    for name, declared in model.model_fields.items():
        kind, info = _under(hints[name], limits), copy(declared)
        own = get_args(hints[name]) if get_origin(hints[name]) is Annotated else ()
        info.metadata = [bound for bound in declared.metadata if bound not in own]
        info.description = (declared.description or "").format_map(asdict(limits)) or None
        most: list[Any] = [bound.le for bound in get_args(kind) if isinstance(bound, Le)]
        if most and isinstance(info.default, int):  # a limit may be below the usual default
            info.default = min(info.default, *most)
        if kind != hints[name] or info.description != declared.description:
            fields[name] = kind, info
    name = model.__name__.removesuffix("Body")
    return create_model(name, __base__=model, **fields) if fields else model


def _under(kind: Any, limits: Limits) -> Any:
    """Return a type in which each `Bound` is that of the limits."""
    if isinstance(kind, type) and issubclass(kind, StrictModel):
        return limited(kind, limits)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        base, *given = parts
        bounds = (one.under(limits) if isinstance(one, Bound) else [one] for one in given)
        return Annotated[_under(base, limits), *(one for several in bounds for one in several)]
    if not parts or origin is Literal:
        return kind
    under = tuple(_under(part, limits) for part in parts)
    return Union[under] if origin in (Union, UnionType) else origin[under]  # noqa: UP007


def with_fields(declared: Iterable[tuple[str, Any, Any]]) -> Callable[[type[Body]], type[Body]]:
    """Add fields that the core declares to a model: names, types, and pydantic's fields."""
    fields: dict[str, Any] = {name: (kind, info) for name, kind, info in declared}
    return lambda model: create_model(model.__name__, __base__=model, **fields)


def _matching(pattern: str, otherwise: str) -> Any:
    """Return the type of strings that match a pattern; `otherwise` says what they must be."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(otherwise)
        return text

    schema = {"type": "string", "pattern": f"^{pattern}$"}
    return Annotated[str, AfterValidator(check), WithJsonSchema(schema)]


BundleName: Any = _matching(_NAME, _NAMES)
BundlePlace: Any = _matching(
    rf"({_NAME}|[a-z][a-z0-9]*://\S{{1,1000}})",
    f"{_NAMES}; or a URL such as s3://BUCKET/NAME where bundles are in an object store",
)


def _refuse_repeated(entries: list[Any]) -> list[Any]:
    """Raise `ValueError` for the first label, item or rule that a request repeats."""
    if len(entries) < 2:
        return entries  # nothing to compare; making an id may take a millisecond
    seen: set[str] = set()
    for place, entry in enumerate(entries):
        given_id = entry.id or identity(entry.text)
        if given_id in seen:
            raise ValueError(f"repeats the id {echoed(given_id)} at place {place}")
        seen.add(given_id)
    return entries


def read_each(name: str, bodies: Sequence[Body], read: Callable[[Body], Entry]) -> list[Entry]:
    """Return each entry of the list `name` of a body, as `read` returns it.

    An `InvalidInput` gets the path of its entry.
    """
    entries = []
    for place, body in enumerate(bodies):
        try:
            entries.append(read(body))
        except InvalidInput as error:
            error.field = f"{name}.{place}.{error.field}"
            raise
    return entries


class Page(StrictModel):
    """The query string of a list."""

    # Not strict: in a query string, numbers are text.
    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)

    after: str = Field(
        "", description="`next` of the page before, unchanged; without it, the first page."
    )
    limit: Annotated[int, up_to("page")] = Field(
        100, ge=1, description="The most entries on the page."
    )

    @property
    def cursor(self) -> PageCursor:
        """Where the page begins; raises `InvalidInput`."""
        return PageCursor.parse(self.after, field="after")


def next_page(shown: Sequence[Any], listed: Sequence[Any]) -> str | None:
    """Return `after` of the next page, or None if all that was `listed` is `shown`."""
    return str(PageCursor.behind(shown[-1].id)) if len(listed) > len(shown) else None
