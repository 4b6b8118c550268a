"""The types of request bodies and query strings. Upper bounds come from `Limits`.

Requests are strict: no unknown field, no number instead of a string, no string instead of a number.
The classes declare the fields. `RequestModels` adds the configured bounds to them; its models
validate and document requests.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from annotated_types import Le, Len, MaxLen
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    create_model,
    model_validator,
)

from service.core import times
from service.core.errors import InvalidInput, echoed
from service.core.label_filter import (
    GROUPS,
    LARGEST_INTEGER,
    LabelFilter,
    Metadata,
    MetadataValue,
    as_metadata,
    list_items,
    metadata_bytes,
    parse,
)
from service.core.lexical.words import TypedQuery
from service.core.memory.decay import can_be_now
from service.core.options import OPTIONS, Option
from service.core.rules import Boost, Pin, Rule, RuleMatch
from service.core.tenant import Tenant
from service.core.text_identity import (
    MOST_ID_CHARACTERS,
    distinct_aliases,
    identity,
    readable,
    uncontrolled,
)
from service.core.types import NewInstance, NewItem, NewLabel
from service.engine.writing.label_merge import LabelMerge
from service.settings import Limits

LARGEST_WEIGHT = 1_000  # a click of this weight outvotes hundreds of equally similar queries
LARGEST_COUNT = 1e9  # clicks in one instance
SMALLEST_WEIGHT = float(np.finfo(np.float32).tiny)  # a smaller one would become 0 in the values
MOST_DATE_CHARACTERS = 40
UNCHANGED = ""  # a date that a merge leaves as it is; null removes it
# The names that `BundleDirectory.path` accepts.
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAMES = (
    "must be a folder's name: 1 to 128 letters, digits, '.', '_' and '-', first a letter or digit"
)


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


class StrictModel(BaseModel):
    """A request body or query string."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    # Fields added in a later version. With their default value they do not count for an idempotency
    # key, so a request repeated after an upgrade is still the same.
    later: ClassVar[frozenset[str]] = frozenset()


DEFAULT_ID = (
    "Default: that of the known {0} with the same text, whatever its case, spaces and Unicode form."
    " A new {0} gets its text in NFKC, case-folded, with single spaces; what is long ends with a"
    " hash, and with a number where another text has this id."
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


def text_type(limits: Limits, *, least: int = 0) -> Any:
    """Return the type of a query, a label's text or its id: trimmed, readable, not too long.

    Up to `least` characters are allowed even if the limit is lower.
    """
    return Annotated[
        str,
        StringConstraints(
            strip_whitespace=True, min_length=1, max_length=max(least, limits.query_characters)
        ),
        AfterValidator(readable),
    ]


def _microseconds(text: str | None) -> int | None:
    """Return a date and time with a zone (RFC 3339) in microseconds; raises `ValueError`."""
    try:
        return None if text is None else times.parse(text)
    except ValueError as error:
        raise ValueError(
            "must be a date and time with a zone (RFC 3339) of the years 1 to 9999, such as"
            " 2026-12-01T00:00:00Z"
        ) from error


class DatePassed(InvalidInput):
    """An `expires_at` has passed. A request that was answered before still gets its answer."""


def _end_of(expires_at: str | None, *, at: str = "") -> int | None:
    """Return `expires_at` in microseconds; raises `DatePassed` with the path `at` before it."""
    end = _microseconds(expires_at)
    if end is not None and end <= times.now():
        raise DatePassed("has passed; delete what nobody may find", field=f"{at}expires_at")
    return end


def _has_words(text: str) -> str:
    """Refuse a text without words: no query would meet the condition."""
    if not TypedQuery(text).joined:
        raise ValueError("has no words")
    return text


class PredictBody(StrictModel):
    """The body of POST /predict. `RequestModels` adds the declared options."""

    queries: list[str] = Field(min_length=1, description="The texts to match.")


def _option_field(option: Option, limits: Limits, text: Any) -> tuple[Any, Any]:
    """Return an option's type in a body, and pydantic's field."""
    texts = option.kind == list[str]
    kind = list[text] if texts else option.kind
    kind = kind | None if option.default is None else kind
    if option.limit:
        kind = _bounded(kind, (MaxLen if texts else Le)(getattr(limits, option.limit)))
    description = option.description.format_map(asdict(limits))
    return kind, Field(option.default, description=description)


STARTS_DESCRIPTION = (
    "The {0} before this time, in RFC 3339 with a zone, such as 2026-12-01T00:00:00Z. Default: it"
    " has no beginning."
)
EXPIRES_DESCRIPTION = (
    "The {0} from this time on, in the same form; after `starts_at` and after now. Default: it has"
    " no end."
)
NO_LABEL, NO_RULE = "label is in no answer", "rule acts on no answer"
BOOST_DESCRIPTION = (
    "Labels are ordered by their score times this factor, such as a bid; scores stay as they are."
)


class LabelBody(StrictModel):
    """One label of POST /labels."""

    later: ClassVar[frozenset[str]] = frozenset({"aliases", "starts_at", "expires_at", "boost"})

    id: str | None = Field(None, description=DEFAULT_ID.format("label"))
    text: str = Field(description="The keyword, as it is shown and matched.")
    aliases: list[str] = Field(
        [],
        description="Further texts of the label, such as product codes: it is found, matched and"
        " spelled by them like by its text. One that equals the text or an earlier alias is left"
        " out.",
    )
    queries: list[str] = Field(
        [], description="Queries known to lead to this label; each becomes an instance."
    )
    metadata: dict[str, Any] = Field(
        {},
        description="Names, and values that are strings, numbers, booleans or lists of strings:"
        " returned with predictions that `explain`, and what a `filter` reads. In UTF-8, at most"
        " {metadata_bytes} bytes together.",
    )

    starts_at: str | None = Field(None, description=STARTS_DESCRIPTION.format(NO_LABEL))
    expires_at: str | None = Field(None, description=EXPIRES_DESCRIPTION.format(NO_LABEL))
    boost: float = Field(
        1.0, gt=0, le=LARGEST_WEIGHT, allow_inf_nan=False, description=BOOST_DESCRIPTION
    )

    def to_label(self, tenant: Tenant | None = None, *, at: str = "") -> NewLabel:
        """Return a tenant's label. Its id is empty if the request has none, to be chosen later.

        Raises `InvalidInput` for metadata of another tenant, and `DatePassed`, with the path `at`
        of the label.
        """
        metadata = as_metadata(self.metadata)
        if tenant is not None:
            require_own(metadata, tenant, at=at)
            metadata = {**metadata, tenant.field: tenant.value}
        return NewLabel(
            id=self.id or "",
            text=self.text,
            aliases=distinct_aliases(self.text, self.aliases),
            queries=tuple(dict.fromkeys(self.queries)),
            metadata=metadata,
            starts_at=_microseconds(self.starts_at),
            expires_at=_end_of(self.expires_at, at=at),
            boost=max(self.boost, SMALLEST_WEIGHT),
        )


def require_own(
    metadata: Mapping[str, MetadataValue | None], tenant: Tenant, *, at: str = ""
) -> None:
    """Raise `InvalidInput` for metadata that would give a label to another tenant."""
    if tenant.field in metadata and metadata[tenant.field] != tenant.value:
        raise InvalidInput(
            f"this client writes only labels with {tenant}",
            field=f"{at}metadata.{tenant.field}",
        )


class LabelsBody(StrictModel):
    """The body of POST /labels."""

    labels: list[Any] = Field(description="Labels to create or replace, each id at most once.")


class MergeBody(StrictModel):
    """The body of PATCH /labels/{label_id}."""

    later: ClassVar[frozenset[str]] = frozenset({"aliases", "starts_at", "expires_at", "boost"})

    text: str | None = Field(None, description="Replaces the text. Default: it stays.")
    aliases: list[str] = Field(
        [],
        description="Are added to the label's aliases, which may be at most {label_aliases}"
        " together. Post the label again to remove one.",
    )
    queries: list[str] = Field(
        [],
        description="Are added to the label's queries, which may be at most {label_queries}"
        " together.",
    )
    metadata: dict[str, Any] = Field(
        {},
        description="Single entries that are added or replaced; null removes an entry. The"
        " result is held to the limits of a label that is posted.",
    )

    starts_at: str | None = Field(UNCHANGED, description="As in POST /labels; null removes it.")
    expires_at: str | None = Field(UNCHANGED, description="As in POST /labels; null removes it.")
    boost: float | None = Field(
        None,
        gt=0,
        le=LARGEST_WEIGHT,
        allow_inf_nan=False,
        description="Replaces the boost. Default: it stays; 1 removes it.",
    )

    def to_merge(self, label_id: str, tenant: Tenant | None, *, at: str = "") -> LabelMerge:
        """Return the changes to the label with this id; raises as `LabelBody.to_label`."""
        metadata: Mapping[str, MetadataValue | None] = as_metadata(self.metadata)
        if tenant is not None:
            require_own(metadata, tenant, at=at)
        dates: dict[str, Callable[[str | None], int | None]] = {
            "starts_at": _microseconds,
            "expires_at": partial(_end_of, at=at),
        }
        return LabelMerge(
            id=label_id,
            text=self.text,
            aliases=tuple(self.aliases),
            queries=tuple(self.queries),
            metadata=metadata,
            dates={
                name: in_microseconds(getattr(self, name))
                for name, in_microseconds in dates.items()
                if getattr(self, name) != UNCHANGED
            },
            boost=None if self.boost is None else max(self.boost, SMALLEST_WEIGHT),
        )


class ChangeBody(MergeBody):
    """One change of PATCH /labels."""

    id: str = Field(description="Id of the label.")


class ChangesBody(StrictModel):
    """The body of PATCH /labels."""

    labels: list[Any] = Field(description="Changes of labels, each id at most once.")


class Page(StrictModel):
    """The query string of a list."""

    # Not strict: in a query string, numbers are text.
    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)

    after: str = Field(
        "", description="`next` of the page before, unchanged; without it, the first page."
    )
    limit: int


class LabelPageQuery(Page):
    """The query string of GET /labels."""

    every: bool = Field(
        False, description="Also list the bundle's labels, not only those posted since."
    )
    text: str | None = Field(
        None,
        description="Only labels of which the text or an alias contains all of these words, in any"
        " order.",
    )

    filter: str | None = Field(
        None, description="Only labels that pass this filter, as JSON; see POST /predict."
    )


class InstanceBody(StrictModel):
    """One instance of POST /instances."""

    later: ClassVar[frozenset[str]] = frozenset({"negative", "at", "clicks"})

    query: str = Field(description="The query as it was typed.")
    labels: list[str] = Field(
        min_length=1,
        description="Ids of the labels that were clicked for the query; see `unknown`.",
    )
    weight: float = Field(
        1.0,
        gt=0,
        le=LARGEST_WEIGHT,
        allow_inf_nan=False,
        description="How relevant these labels are to the query: 1 is as relevant as the average"
        " label of a trained query. The newest click of a query and a label counts.",
    )
    negative: bool = Field(
        False,
        description="Whether these labels are wrong for the query: it then votes against them, with"
        " this `weight`, where it is among the nearest. A missing click never means this.",
    )
    at: str | None = Field(
        None,
        description="When it was clicked, with a zone, such as 2026-12-01T00:00:00Z. If it is"
        " older than the known click of its pair, it changes nothing. Its weight decays from then"
        " on if the service has the setting `click_half_life`. Default: now if it"
        " has, otherwise never.",
    )

    clicks: float | None = Field(
        None,
        gt=0,
        le=LARGEST_COUNT,
        allow_inf_nan=False,
        description="Instead of `weight`: so many further clicks on each of these labels. They are"
        " added to the earlier ones, and compared with the clicks that the query was trained with.",
    )

    @model_validator(mode="after")
    def _require_one_measure(self) -> Self:
        if self.clicks is not None and (self.negative or self.weight != 1.0):
            raise ValueError("`clicks` cannot be given together with `weight` or `negative`")
        return self

    def to_instance(self) -> NewInstance:
        """Return the instance, without repeated labels; a negative one has a weight below 0."""
        weight = max(self.weight, SMALLEST_WEIGHT)
        return NewInstance(
            query=self.query,
            labels=tuple(dict.fromkeys(self.labels)),
            weight=-weight if self.negative else weight,
            at=_microseconds(self.at),
            clicks=self.clicks,
        )


class InstancesBody(StrictModel):
    """The body of POST /instances."""

    later: ClassVar[frozenset[str]] = frozenset({"unknown"})

    instances: list[Any] = Field(min_length=1, description="The clicks to learn.")
    unknown: Literal["refuse", "skip"] = Field(
        "refuse",
        description="What becomes of labels that do not exist: `refuse` the whole request, or"
        " `skip` them, learn the rest, and list them in the answer.",
    )


class UnlearnedBody(StrictModel):
    """One instance of DELETE /instances."""

    query: str = Field(description="The query, exactly as it was learned.")
    labels: list[str] = Field(
        min_length=1, description="Ids of the labels to unlearn for the query; see `unknown`."
    )

    def to_instance(self) -> NewInstance:
        """Return the query with its labels, each once."""
        return NewInstance(query=self.query, labels=tuple(dict.fromkeys(self.labels)))


class UnlearnBody(StrictModel):
    """The body of DELETE /instances."""

    instances: list[Any] = Field(min_length=1, description="The pairs to take back or unlearn.")
    trained: bool = Field(
        False,
        description="Whether the pairs are also unlearned from the training data and from the"
        " `queries` of the labels. Without it, exactly what POST /instances learned is taken back.",
    )
    unknown: Literal["refuse", "skip"] = Field(
        "refuse",
        description="What becomes of labels that do not exist: `refuse` the whole request, or"
        " `skip` them, unlearn the rest, and list them in the answer.",
    )


class WhenBody(StrictModel):
    """The condition of a rule."""

    query: str = Field(description="Words that a query has, or the whole query.")
    match: RuleMatch = Field(
        description="`exact`: they are the words of the query, however they are spaced; `phrase`:"
        " they are all in the query, in this order; `contains`: they are all in it, in any order."
        " Case and punctuation do not count, and accents only for `exact`. A query is compared as"
        " typed and as read."
    )


class PinBody(StrictModel):
    """A pinned label."""

    id: str = Field(description="Id of the label.")
    position: int = Field(ge=1, description="Its position in answers, from 1.")


class BoostBody(StrictModel):
    """The boost of a rule: of `labels` or of those that pass `filter`."""

    labels: list[str] | None = Field(None, min_length=1, description="Ids of the labels.")
    filter: dict[str, Any] | None = Field(None, description="Labels that pass; see POST /predict.")
    factor: float = Field(
        gt=0,
        le=LARGEST_WEIGHT,
        allow_inf_nan=False,
        description="These labels are ordered by their score times this factor, and times their"
        " own `boost` and those of other rules.",
    )


class ThenBody(StrictModel):
    """The consequences of a rule."""

    hide: list[str] | None = Field(
        None, min_length=1, description="Ids of labels that do not answer."
    )
    pin: list[PinBody] | None = Field(
        None,
        min_length=1,
        description="Labels that stand at fixed positions, whatever their scores and confidences."
        " A request's `filter` and `match` go before.",
    )
    boost: BoostBody | None = Field(None, description="Labels that come earlier or later.")


class RuleBody(StrictModel):
    """One rule of POST /rules."""

    id: str = Field(description="Names the rule; a rule with this id is replaced.")
    when: WhenBody | None = Field(None, description="The condition. Default: every query.")
    filter: dict[str, Any] | None = Field(
        None, description="Only labels that pass answer; see POST /predict."
    )
    then: ThenBody | None = Field(
        None, description="Consequences; optional for a rule with a `filter`."
    )
    starts_at: str | None = Field(None, description=STARTS_DESCRIPTION.format(NO_RULE))
    expires_at: str | None = Field(None, description=EXPIRES_DESCRIPTION.format(NO_RULE))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse a rule without consequences, and contradictory ones."""
        hide, pins, boost = self._consequences()
        if self.filter is None and not (hide or pins or boost):
            raise ValueError(
                "has no consequences: give `filter`, or `then` with `hide`, `pin` or `boost`"
            )
        _refuse_twice("label", [pin.id for pin in pins])
        _refuse_twice("position", [pin.position for pin in pins])
        both = {pin.id for pin in pins}.intersection(hide)
        if both:
            raise ValueError(f"pins and hides the label {echoed(min(both))}")
        if boost is not None and (boost.labels is None) == (boost.filter is None):
            raise ValueError("boosts either `labels` or those that pass a `filter`")
        return self

    def to_rule(self, at: str, *, most: int, tenant: Tenant | None) -> Rule:
        """Return a tenant's rule of the field `at`.

        Raises `InvalidInput` for a wrong filter, and `DatePassed`. A filter has at most `most`
        conditions and values.
        """
        hide, pins, boost = self._consequences()

        def parsed(document: dict[str, Any] | None, path: str) -> LabelFilter | None:
            return None if document is None else parse(document, at=f"{at}.{path}", most=most)

        return Rule(
            id=self.id,
            query=None if self.when is None else self.when.query,
            match=None if self.when is None else self.when.match,
            filter=parsed(self.filter, "filter"),
            hide=tuple(dict.fromkeys(hide)),
            pins=tuple(Pin(id=pin.id, position=pin.position) for pin in pins),
            boost=None
            if boost is None
            else Boost(
                factor=max(boost.factor, SMALLEST_WEIGHT),
                labels=tuple(dict.fromkeys(boost.labels or ())),
                filter=parsed(boost.filter, "then.boost.filter"),
            ),
            starts_at=_microseconds(self.starts_at),
            expires_at=_end_of(self.expires_at, at=f"{at}."),
            tenant=tenant,
        )

    def _consequences(self) -> tuple[list[str], list[PinBody], BoostBody | None]:
        """Return what the rule hides, pins and boosts."""
        if self.then is None:
            return [], [], None
        return self.then.hide or [], self.then.pin or [], self.then.boost


def _refuse_twice(what: str, pinned: Sequence[str | int]) -> None:
    counts = Counter(pinned)
    twice = [one for one, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"pins the {what} {echoed(str(twice[0]))} twice")


class RulesBody(StrictModel):
    """The body of POST /rules."""

    rules: list[Any] = Field(description="Rules to create or replace, each id at most once.")


class ItemBody(StrictModel):
    """One item of POST /items."""

    id: str | None = Field(None, description=DEFAULT_ID.format("item"))
    text: str = Field(description="What the item says, such as the name of a category.")

    def to_item(self) -> NewItem:
        """Return the item. Its id is empty if the request has none; the writer then chooses it."""
        return NewItem(id=self.id or "", text=self.text)


class ItemsBody(StrictModel):
    """The body of POST /items."""

    items: list[Any] = Field(description="Items to create or replace, each id at most once.")


class SnapshotBody(StrictModel):
    """The body of POST /admin/snapshot."""

    bundle: BundleName | None = Field(
        None,
        description="Name of the new bundle: 1 to 128 letters, digits, '.', '_' and '-'. Default:"
        " the name of the served bundle, '-v' and the memory version.",
    )


class ReloadBody(StrictModel):
    """The body of POST /admin/reload."""

    bundle: BundlePlace = Field(
        description="Name of the bundle to serve: a folder in the service's folder of bundles. If"
        " bundles are in an object store, its URL may be given instead of its name."
    )
    other_data: bool = Field(
        False,
        description="Serve it even if most labels that the label log takes for granted are unknown"
        " to it: what the log says of them counts for nothing.",
    )


def _date(text: str) -> str:
    """Refuse a text that is no date and time with a zone."""
    _microseconds(text)
    return text


def _past(text: str) -> str:
    """Refuse what `_date` refuses, and a time that a click cannot have."""
    at = _microseconds(text)
    if at is not None and not can_be_now(at / times.SECOND, now=times.now() / times.SECOND):
        raise ValueError("must be a time since 1970 that has passed")
    return text


def _end(text: str, info: ValidationInfo) -> str:
    """Refuse what `_date` refuses, and a date that is not after the start."""
    end, start = _microseconds(text), _microseconds(info.data.get("starts_at") or None)
    if end is not None and start is not None and end <= start:
        raise ValueError("must be after `starts_at`")
    return text


def _metadata_value(limits: Limits) -> Any:
    """Return the type of one value of a label's metadata."""
    characters, most = limits.metadata_characters, limits.metadata_entries
    allowed = (
        f"must be a string of at most {characters:,} characters, a number, true, false, or a list"
        f" of at most {most:,} such strings"
    )

    def check(value: Any) -> Any:
        if isinstance(value, int | float) and abs(value) > LARGEST_INTEGER:
            raise ValueError(f"must be at most {LARGEST_INTEGER:,} in size")
        listed = value if isinstance(value, list) else [value]
        texts = [one for one in listed if isinstance(one, str)]
        alone = isinstance(value, str | int | float)
        if not (alone or (isinstance(value, list) and len(texts) == len(value) <= most)):
            raise ValueError(allowed)
        if any(len(text) > characters for text in texts):
            raise ValueError(allowed)
        for text in texts:
            uncontrolled(text)
        return value

    text = {"type": "string", "maxLength": characters}
    number = {"type": "number", "minimum": -LARGEST_INTEGER, "maximum": LARGEST_INTEGER}
    schema = [text, number, {"type": "boolean"}]
    listed = {"type": "array", "items": text, "maxItems": most}
    return Annotated[Any, AfterValidator(check), WithJsonSchema({"anyOf": [*schema, listed]})]


Model = TypeVar("Model", bound=StrictModel)


def _fits(limits: Limits) -> Callable[[Metadata], Metadata]:
    """Refuse metadata of too many bytes, which every explained answer repeats, or list items."""

    def check(metadata: Metadata) -> Metadata:
        size, most = metadata_bytes(metadata), limits.metadata_bytes
        if size > most:
            raise ValueError(f"has {size} bytes, names and values; at most {most} are allowed")
        items, most = list_items(metadata), limits.metadata_entries
        if items > most:
            raise ValueError(f"has {items} items in its lists; at most {most} are allowed")
        return metadata

    return check


def _bounded(kind: Any, *bounds: Any) -> Any:
    """Return a type with bounds."""
    return Annotated[kind, *bounds]


def _limited(limits: Limits, base: type[Model], name: str, **types: Any) -> type[Model]:
    """Return `base` with bounded types for some fields; descriptions may name any limit."""
    fields: dict[str, Any] = {}
    for field, kind in types.items():
        info = copy(base.model_fields[field])
        info.description = (info.description or "").format_map(asdict(limits))
        fields[field] = kind, info
    return create_model(name, __base__=base, **fields)


class RequestModels:
    """The models of all requests, under the configured limits."""

    def __init__(self, limits: Limits) -> None:
        text: Any = text_type(limits)
        # The id of an existing label may be as long as a posted one, or one made from a text.
        known_id: Any = text_type(limits, least=MOST_ID_CHARACTERS)
        short: Any = _bounded(str, MaxLen(limits.metadata_characters), AfterValidator(uncontrolled))
        value: Any = _metadata_value(limits)
        limited = partial(_limited, limits)
        queries = _bounded(list[text], MaxLen(limits.queries))
        options: Any = {option.name: _option_field(option, limits, text) for option in OPTIONS}
        base = limited(PredictBody, "PredictRequest", queries=queries)
        self.predict = create_model("PredictRequest", __base__=base, **options)
        aliases = _bounded(list[text], MaxLen(limits.label_aliases))
        queries = _bounded(list[text], MaxLen(limits.label_queries))
        entries = MaxLen(limits.metadata_entries)
        fits = AfterValidator(_fits(limits))
        date = StringConstraints(max_length=MOST_DATE_CHARACTERS)
        dates: dict[str, Any] = {
            "starts_at": _bounded(str, date, AfterValidator(_date)) | None,
            "expires_at": _bounded(str, date, AfterValidator(_end)) | None,
        }
        label: Any = limited(
            LabelBody,
            "Label",
            id=text | None,
            text=text,
            aliases=aliases,
            queries=queries,
            metadata=_bounded(dict[short, value], entries, fits),
            **dates,
        )
        self.label: type[LabelBody] = label

        def distinct(entry: Any, most: int) -> Any:
            return _bounded(list[entry], Len(1, most), AfterValidator(_refuse_repeated))

        self.labels = limited(LabelsBody, "LabelsRequest", labels=distinct(label, limits.labels))
        merged: dict[str, Any] = {
            "text": text | None,
            "aliases": aliases,
            "queries": queries,
            "metadata": _bounded(dict[short, value | None], entries),
            **dates,
        }
        self.merge = limited(MergeBody, "LabelMerge", **merged)
        change: Any = limited(ChangeBody, "LabelChange", id=known_id, **merged)
        self.change: type[ChangeBody] = change
        self.changes = limited(ChangesBody, "LabelChanges", labels=distinct(change, limits.labels))
        known_ids = _bounded(list[known_id], MaxLen(limits.instance_labels))
        past = _bounded(str, date, AfterValidator(_past)) | None
        instance: Any = limited(InstanceBody, "Instance", query=text, labels=known_ids, at=past)
        instances = _bounded(list[instance], MaxLen(limits.instances))
        self.instances = limited(InstancesBody, "InstancesRequest", instances=instances)
        pair: Any = limited(UnlearnedBody, "UnlearnedInstance", query=text, labels=known_ids)
        pairs = _bounded(list[pair], MaxLen(limits.instances))
        self.unlearn = limited(UnlearnBody, "UnlearnRequest", instances=pairs)
        limit = Field(
            min(100, limits.page), ge=1, le=limits.page, description="The most entries on the page."
        )
        self.page = create_model("Page", __base__=Page, limit=(int, limit))
        searched = limited(LabelPageQuery, "LabelPage", text=text | None)
        self.label_page = create_model("LabelPage", __base__=searched, limit=(int, limit))
        named = _bounded(list[known_id], MaxLen(limits.rule_labels))
        pin: Any = limited(PinBody, "Pin", id=known_id, position=_bounded(int, Le(limits.top_k)))
        pins = _bounded(list[pin], MaxLen(limits.rule_labels))
        group = _bounded(dict[str, Any], MaxLen(len(GROUPS))) | None
        boost: Any = limited(BoostBody, "Boost", labels=named | None, filter=group)
        then: Any = limited(
            ThenBody, "Then", hide=named | None, pin=pins | None, boost=boost | None
        )
        words: Any = _bounded(text, AfterValidator(_has_words))
        when: Any = limited(WhenBody, "When", query=words)
        rule: Any = limited(
            RuleBody,
            "Rule",
            id=text,
            when=when | None,
            filter=group,
            then=then | None,
            **dates,
        )
        self.rules = limited(RulesBody, "RulesRequest", rules=distinct(rule, limits.rules))
        item: Any = limited(ItemBody, "Item", id=text | None, text=text)
        self.items = limited(ItemsBody, "ItemsRequest", items=distinct(item, limits.labels))
