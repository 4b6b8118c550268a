"""/rules: create, replace, list, show and delete the rules that steer answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NotRequired, Self, cast

from pydantic import AfterValidator, Field, model_validator

from service.core import times
from service.core.changes import DeleteRule
from service.core.errors import echoed
from service.core.label import Weight
from service.core.label_filter import parse
from service.core.lexical.words import TypedQuery
from service.core.rules import Rule, RuleMatch, from_document
from service.core.tenant import Tenant
from service.core.types import TypedDict, doc
from service.engine.writing.operations import PostRules, Written
from service.http.bodies import (
    FilterGroup,
    KnownId,
    Page,
    StrictModel,
    Text,
    at_most,
    distinct,
    next_page,
    up_to,
)
from service.http.endpoint import Call, Routes, Version, VersionAnswer, route

_RULE_PATH = "/rules/{rule_id:label_id}"


def _has_words(text: str) -> str:
    """Refuse a text without words: no query would meet the condition."""
    if not TypedQuery(text).joined:
        raise ValueError("has no words")
    return text


Named = Annotated[list[KnownId], at_most("rule_labels")]


class WhenBody(StrictModel):
    """The condition of a rule."""

    query: Annotated[Text, AfterValidator(_has_words)] = Field(
        description="Words that a query has, or the whole query."
    )
    match: RuleMatch = Field(
        description="`exact`: they are the words of the query, however they are spaced; `phrase`:"
        " they are all in the query, in this order; `contains`: they are all in it, in any order."
        " Case and punctuation do not count, and accents only for `exact`. A query is compared as"
        " typed and as read."
    )


class PinBody(StrictModel):
    """A pinned label."""

    id: KnownId = Field(description="Id of the label.")
    position: Annotated[int, up_to("top_k")] = Field(
        ge=1, description="Its position in answers, from 1."
    )


class BoostBody(StrictModel):
    """The boost of a rule: of `labels` or of those that pass `filter`."""

    labels: Named | None = Field(None, min_length=1, description="Ids of the labels.")
    filter: FilterGroup | None = Field(None, description="Labels that pass; see POST /predict.")
    factor: Weight = Field(
        description="These labels are ordered by their score times this factor, and times their"
        " own `boost` and those of other rules.",
    )


class ThenBody(StrictModel):
    """The consequences of a rule."""

    hide: Named | None = Field(None, min_length=1, description="Ids of labels that do not answer.")
    pin: Annotated[list[PinBody], at_most("rule_labels")] | None = Field(
        None,
        min_length=1,
        description="Labels that stand at fixed positions, whatever their scores and confidences."
        " A request's `filter` and `match` go before.",
    )
    boost: BoostBody | None = Field(None, description="Labels that come earlier or later.")


_NO_RULE = "rule acts on no answer"


class RuleBody(StrictModel):
    """One rule of POST /rules."""

    id: Text = Field(description="Names the rule; a rule with this id is replaced.")
    when: WhenBody | None = Field(None, description="The condition. Default: every query.")
    filter: FilterGroup | None = Field(
        None, description="Only labels that pass answer; see POST /predict."
    )
    then: ThenBody | None = Field(
        None, description="Consequences; optional for a rule with a `filter`."
    )
    starts_at: times.Start | None = Field(None, description=times.STARTS.format(_NO_RULE))
    expires_at: times.End | None = Field(None, description=times.EXPIRES.format(_NO_RULE))

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

    def to_rule(self, *, most: int, tenant: Tenant | None) -> Rule:
        """Return a tenant's rule.

        Raises `InvalidInput` for a wrong filter, and `DatePassed`. A filter has at most `most`
        conditions and values.
        """
        rule = from_document(
            self.model_dump(exclude={"starts_at", "expires_at"}),
            read_filter=lambda document, path: parse(document, at=path, most=most),
        )
        start, end = times.start_of(self.starts_at), times.end_of(self.expires_at)
        return replace(rule, starts_at=start, expires_at=end, tenant=tenant)

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


class RulesRequest(StrictModel):
    """The body of POST /rules."""

    rules: Annotated[list[RuleBody], *distinct("rules")] = Field(
        description="Rules to create or replace, each id at most once."
    )


class RuleStatus(TypedDict):
    """What the service did with one posted rule."""

    id: str
    status: Annotated[str, doc("`created`, `updated` or `unchanged`.")]


class RulesAnswer(TypedDict):
    """The answer of POST /rules. The rules are on disk, and act from `version` on."""

    version: Version
    rules: Annotated[list[RuleStatus], doc("One for each rule, in the order of the request.")]


class RuleAnswer(TypedDict):
    """A rule as it was posted."""

    id: str
    when: NotRequired[Annotated[Mapping[str, str], doc("The condition, if it has one.")]]
    filter: NotRequired[Annotated[Mapping[str, Any], doc("Only labels that pass answer.")]]
    then: NotRequired[Annotated[Mapping[str, Any], doc("Its other consequences.")]]
    starts_at: NotRequired[Annotated[str, doc("When it begins to act, if it has a date.")]]
    expires_at: NotRequired[Annotated[str, doc("From when on it does not act, if it expires.")]]


class RulePage(TypedDict):
    """A page of the rules, in order of id."""

    version: Version
    rules: list[RuleAnswer]
    next: Annotated[str | None, doc("`after` of the next page; null on the last page.")]


class RuleRoutes(Routes):
    """Reads and writes rules."""

    @route("POST /rules")
    async def put_rules(self, call: Call[RulesRequest]) -> RulesAnswer:
        """Create or replace rules that hide, pin, boost or filter labels.

        If several act on a query, all filters hold, hidden labels are never pinned, and factors
        multiply. Of two pins at one position, that of the more specific rule comes first (`exact`,
        `phrase`, `contains`, none; then by id).
        """
        read = partial(RuleBody.to_rule, most=self.limits.filter_values, tenant=call.tenant)

        async def write(rules: Sequence[Rule]) -> Written:
            operation = PostRules(rules=tuple(rules), tenant=call.tenant)
            return await self.engine.write(operation, request=call.idempotency)

        written = await self.write_each(call, "rules", read, write)
        return {
            "version": written.version,
            "rules": [{"id": rule.id, "status": rule.status} for rule in written.labels],
        }

    @route("GET /rules")
    async def list_rules(self, call: Call[Page]) -> RulePage:
        """List all rules."""
        page, view = call.input, self.engine.view
        own = view.rules.of(call.tenant)
        # In a thread, because the first page after a write sorts all ids.
        rules = await asyncio.to_thread(own.page, after=page.cursor, size=page.limit + 1)
        shown = rules[: page.limit]
        return {
            "version": view.version,
            "rules": [rule_answer(rule) for rule in shown],
            "next": next_page(shown, rules),
        }

    @route(f"GET {_RULE_PATH}")
    async def get_rule(self, call: Call[None]) -> RuleAnswer:
        """Show one rule."""
        return rule_answer(self.engine.view.rules.of(call.tenant).require(call.path_id))

    @route(f"DELETE {_RULE_PATH}")
    async def delete_rule(self, call: Call[None]) -> VersionAnswer:
        """Delete one rule."""
        return await self.delete(call, DeleteRule)


def rule_answer(rule: Rule) -> RuleAnswer:
    """Return a rule in the form of GET /rules."""
    answer = {name: value for name, value in rule.document().items() if name != "tenant"}
    for name in ("starts_at", "expires_at"):
        if name in answer:
            answer[name] = times.shown(answer[name])
    return cast(RuleAnswer, answer)
