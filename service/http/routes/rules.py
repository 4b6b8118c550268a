"""/rules: create, replace, list, show and delete the rules that steer answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, cast

from typing_extensions import TypedDict

from service.core import times
from service.core.changes import DeleteRule
from service.core.page_cursor import PageCursor
from service.core.rules import Rule
from service.engine.writing.operations import DeleteOne, Operation, PostRules, Refuse
from service.http.answers import Version, VersionAnswer
from service.http.endpoint import Call, Endpoint, Routes
from service.http.problems import doc
from service.http.request_models import DatePassed, Page, RulesBody

_RULE_PATH = "/rules/{rule_id:label_id}"


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

    def endpoints(self) -> list[Endpoint[Any]]:
        return [
            Endpoint(
                route="POST /rules",
                summary="Create or replace rules that hide, pin, boost or filter labels",
                description="If several act on a query, all filters hold, hidden labels are never"
                " pinned, and factors multiply. Of two pins at one position, that of the more"
                " specific rule comes first (`exact`, `phrase`, `contains`, none; then by id).",
                handler=self.put_rules,
                scope="write",
                body=self.models.rules,
                answer=RulesAnswer,
            ),
            Endpoint(
                route="GET /rules",
                summary="List all rules",
                handler=self.list_rules,
                scope="read",
                query=self.models.page,
                answer=RulePage,
            ),
            Endpoint(
                route=f"GET {_RULE_PATH}",
                summary="Show one rule",
                handler=self.get_rule,
                scope="read",
                answer=RuleAnswer,
            ),
            Endpoint(
                route=f"DELETE {_RULE_PATH}",
                summary="Delete one rule",
                handler=self.delete_rule,
                scope="write",
                answer=VersionAnswer,
            ),
        ]

    async def put_rules(self, call: Call[RulesBody]) -> RulesAnswer:
        """Write all rules of a request, or none."""
        most = self.limits.filter_values
        operation: Operation
        try:
            rules = await self.side_thread.run_if(
                call.hold.size,
                lambda: tuple(
                    body.to_rule(f"rules.{place}", most=most, tenant=call.tenant)
                    for place, body in enumerate(call.input.rules)
                ),
            )
            operation = PostRules(rules=rules, tenant=call.tenant)
        except DatePassed as error:
            operation = Refuse(error=error)
        written = await self.engine.write(operation, request=call.idempotency)
        return {
            "version": written.version,
            "rules": [{"id": rule.id, "status": rule.status} for rule in written.labels],
        }

    async def list_rules(self, call: Call[Page]) -> RulePage:
        """Return one page of the rules."""
        page, view = call.input, self.engine.view
        own = view.rules.of(call.tenant)
        after = PageCursor.parse(page.after, field="after")
        # In a thread, because the first page after a write sorts all ids.
        rules = await asyncio.to_thread(own.page, after=after, size=page.limit + 1)
        shown = rules[: page.limit]
        return {
            "version": view.version,
            "rules": [rule_answer(rule) for rule in shown],
            "next": str(PageCursor.behind(shown[-1].id)) if len(rules) > len(shown) else None,
        }

    async def get_rule(self, call: Call[None]) -> RuleAnswer:
        """Return a rule."""
        return rule_answer(self.engine.view.rules.of(call.tenant).require(call.path_id))

    async def delete_rule(self, call: Call[None]) -> VersionAnswer:
        """Remove a rule; it acts on no query any more."""
        written = await self.engine.write(
            DeleteOne(change=DeleteRule, id=call.path_id, tenant=call.tenant),
            request=call.idempotency,
        )
        return {"version": written.version}


def rule_answer(rule: Rule) -> RuleAnswer:
    """Return a rule in the form of GET /rules."""
    answer = {name: value for name, value in rule.document().items() if name != "tenant"}
    for name in ("starts_at", "expires_at"):
        if name in answer:
            answer[name] = times.shown(answer[name])
    return cast(RuleAnswer, answer)
