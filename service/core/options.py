"""The options of a query, each declared once: type, limits, default, description and cost.

The body of `POST /predict`, the OpenAPI document, the command `keymatch predict`, bulk jobs, the
cost of a query and the table in `service/README.md` are derived from the fields of
`PredictOptions`. A further option is a field here, and a line in the stage that uses it.

`complete_options` takes those that a request asks for, and the bundle that answers.
"""

# ruff: noqa: RUF009 (`option` returns fields of immutable defaults)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_type_hints

from annotated_types import Ge, Le, MaxLen, MinLen

from service.core.errors import NotInBundle
from service.core.label_filter import GROUPS, LabelFilter
from service.core.tenant import Tenant

MatchType = Literal["exact", "phrase", "broad"]  # how a keyword matches a query
Spelling = Literal["auto", "off"]  # whether misspelled queries are searched as they were meant
_Count = Annotated[int, Ge(1)]
_Share = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a request. The value None means the default."""

    name: str
    field: str  # of `PredictOptions`
    kind: Any  # the type in a body
    default: Any  # None: the bundle's, or as the description says
    description: str  # a name of `Limits` in braces stands for that limit
    command: str | None = ""  # a sentence for `keymatch predict`; None: it lacks this option
    limit: str = ""  # the name in `Limits` of the largest value or length
    of_bundle: Callable[[Any], Any] | None = None  # manifest -> default
    held: Callable[[Any, Any], Any] | None = None  # (asked, bundle's default) -> value of the field
    cost: Callable[[PredictOptions], float] | None = None  # CPU milliseconds of a query


def option(default: Any, description: str, *, compare: bool = True, **declared: Any) -> Any:
    """Return a field of `PredictOptions` with facts of its `Option`."""
    return field(
        default=default, compare=compare, metadata={"description": description, **declared}
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """The complete options with which one request is answered."""

    # Costs were measured on one core with 126,665 keys, at several depths and numbers of keywords,
    # with and without evidence. Only their ratios matter; see `query_cost`. Predicted items cost
    # each query of a bundle the same, and do not count.

    top_k: _Count = option(
        10,
        "The most keywords for each query.",
        limit="top_k",
        cost=lambda asked: (0.0035 + 0.01 * asked.explain) * asked.top_k,
    )
    memorization: _Share = option(
        0.5,
        "Weight of the votes of training queries and clicks, against those of the labels' own texts"
        " (the paper's lambda), 0 to 1. Default: the bundle's.",
        of_bundle=lambda facts: facts.predictor.memorization,
    )
    depth: _Count = option(
        200,
        "How many of the nearest keys vote for each query (the paper's b). Default: the bundle's.",
        limit="depth",
        of_bundle=lambda facts: facts.predictor.depth,
        cost=lambda asked: (0.004 + 0.002 * asked.explain) * asked.depth,
    )
    explain: bool = option(
        False,
        "Add to each keyword its metadata and the rows of the memory that voted for it"
        " (`evidence`), and to each query the items that it attended to (`items`), where the bundle"
        " has an item memory.",
        command="For .jsonl.",
    )
    # Requests that differ only in `min_version` and `deadline_ms` are answered together.
    min_version: Annotated[int, Ge(0), Le(2**63 - 1)] = option(
        0,
        "Answer from this memory version or a later one: pass the `version` of a write to be sure"
        " to see it. The request waits for it, at most until its deadline.",
        command=None,
        compare=False,
    )
    candidates: int = option(  # the number of labels to rerank; 0: answer with the votes
        0,
        "Whether the best keywords are ranked a second time; false for the memory's own ranking,"
        " whose scores are its votes (`score_kind`). Default: yes, where the bundle has a second"
        " ranking; true for another bundle is an error.",
        name="rerank",
        kind=bool,
        of_bundle=lambda facts: 0 if facts.reranker is None else facts.reranker.candidates,
        held=lambda rerank, candidates: candidates if rerank else 0,
        cost=lambda asked: 0.007 * asked.candidates,
    )
    spelling: bool = option(
        False,
        "`auto`: a query with a misspelled word is searched as it was meant, by words of the"
        " memory, and the result says so (`searched`). `off`: every query is searched as it is."
        " Default: the bundle's.",
        kind=Spelling,
        of_bundle=lambda facts: facts.spelling,
        held=lambda spelling, _default: spelling == "auto",
    )
    match: tuple[MatchType, ...] | None = option(
        None,
        "Answer only with keywords that match the query like this: `exact` (its words, however they"
        " are spaced), `phrase` (all of the keyword's words are in the query, in order), `broad`"
        " (any other). Default: all.",
        kind=Annotated[list[MatchType], MinLen(1)],
        command="May be given several times.",
        held=lambda types, _default: tuple(dict.fromkeys(types)) or None,
        cost=lambda asked: 15 * (asked.match is not None),  # all labels with votes are compared
    )
    min_confidence: _Share = option(
        0.0,
        "Leave out keywords whose `confidence` is lower; a result may then have none. For a bundle"
        " with confidences alone.",
        command="From 0 to 1.",
    )
    filter: LabelFilter | None = option(
        None,
        "Only labels whose metadata pass: a group of conditions and groups, such as"
        ' `{{"all": [{{"field": "price", "lt": 100}}], "none": [{{"field": "brand", "in":'
        ' ["acme"]}}]}}`. A condition has a `field` and one of `eq`, `in`, `lt`, `lte`, `gt`, `gte`'
        " and `exists`. Answers are those of a memory without the other labels. At most"
        " {filter_values} conditions and values together.",
        kind=Annotated[dict[str, Any], MaxLen(len(GROUPS))],
        command="As JSON.",
        # A filtered query walks longer, or scans.
        cost=lambda asked: 0 if asked.filter is None else 3 + 0.001 * asked.filter.work,
    )
    diversity: _Share = option(
        0.0,
        "How much a keyword loses by being like a better one (maximal marginal relevance among the"
        " best hundred): 0 orders by score alone. Otherwise keywords are in the order in which they"
        " were chosen, with their own scores.",
        command="From 0 to 1.",
        cost=lambda asked: 0.5 * (asked.diversity > 0),
    )
    deadline_ms: _Count | None = option(
        None,
        "Milliseconds after which the request is given up with a 504. Default:"
        " {default_deadline_ms}, and {default_deadline_query_ms} more for each further query, or"
        " more where a query asks for much.",
        kind=_Count,
        limit="deadline_ms",
        command=None,
        compare=False,
    )
    items: tuple[str, ...] | None = option(
        None,
        "Ids or texts of the items that all queries attend to; [] for none. Default: the items that"
        " are nearest to each query. For a bundle with an item memory alone.",
        kind=list[str],
        limit="items",
        command=None,
        held=lambda items, _default: tuple(items),
        cost=lambda asked: 0.025 * len(asked.items or ()),  # found by text, fused, and named
    )
    exact: bool = False  # scans all keys instead of searching the graphs, for evaluation
    words: float | None = None  # what shared words add to cosines of trained rows; None: no words
    tenant: Tenant | None = None  # whose labels may answer; None: all


_KINDS = get_type_hints(PredictOptions, include_extras=True)
OPTIONS = tuple(
    Option(
        field=one.name,
        default=None if "of_bundle" in one.metadata else one.default,
        **{"name": one.name, "kind": _KINDS[one.name], **one.metadata},
    )
    for one in fields(PredictOptions)
    if one.metadata
)
BULK_OPTIONS = tuple(one for one in OPTIONS if one.command is not None)


def complete_options(facts: Any, **asked: Any) -> PredictOptions:
    """Return complete options for the bundle with the manifest `facts`.

    An option that is None, or not asked for, has its default. `asked` may also have fields of
    `PredictOptions` that no request sets. Raises `NotInBundle` if reranking or a least confidence
    is asked for, and the bundle has none.
    """
    if asked.get("rerank") and facts.reranker is None:
        raise NotInBundle("second ranking", field="rerank")
    values = {"words": facts.predictor.words, **asked}
    for one in OPTIONS:
        own = None if one.of_bundle is None else one.of_bundle(facts)
        value = values.pop(one.name, None)
        value = own if value is None else value
        if value is not None:
            values[one.field] = value if one.held is None else one.held(value, own)
    options = PredictOptions(**values)
    kind = "probability" if options.candidates else "votes"
    if options.min_confidence and kind not in (facts.confidence or {}):
        raise NotInBundle("confidence", field="min_confidence")
    return options
