"""A filter's warnings name the conditions that no label's value can meet, and no others."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.bundle.bundle import Bundle
from service.core.label_filter import LabelFilter, kind_of, parse
from service.core.memory.filtered_view import filtered
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.types import NewLabel
from tests.support.changes import delete, put

FIELDS = ("price", "size", "sold")
VALUES = st.one_of(
    st.sampled_from([1, 2.5, True, False, "29.90", "n/a", ()]),
    st.lists(st.sampled_from(["s", "m"]), max_size=2).map(tuple),
)
TABLES = st.lists(  # of one label each
    st.dictionaries(st.sampled_from(FIELDS[:2]), VALUES), min_size=1, max_size=4
)
CONDITIONS = st.builds(
    lambda field, test: {"field": field, **test},
    st.sampled_from(FIELDS),
    st.sampled_from(
        [
            *({"eq": value} for value in (1, 7, "s", "none", True)),
            *({"in": values} for values in ([1, 2], ["m", "x"], [False])),
            *({operator: 100} for operator in ("lt", "lte", "gt", "gte")),
            *({"exists": value} for value in (True, False)),
        ]
    ),
)
FILTERS = st.dictionaries(
    st.sampled_from(["all", "any", "none"]),
    st.lists(st.one_of(CONDITIONS, CONDITIONS.map(lambda one: {"none": [one]})), min_size=1),
    min_size=1,
).map(lambda document: parse(document, at="filter", most=100))


def kinds_in(table: list[dict[str, Any]], field: str) -> set[str]:
    """Return the kinds of values of a field; the items of a list are strings."""
    values = [row[field] for row in table if field in row]
    single = {kind_of(value) for value in values if not isinstance(value, tuple)}
    return single | {"string" for value in values if isinstance(value, tuple) and value}


@settings(max_examples=30)
@given(table=TABLES, wanted=FILTERS, gone=st.sets(st.integers(0, 3)))
def test_what_never_holds_is_named(
    trigram_bundle: Bundle, table: list[dict[str, Any]], wanted: LabelFilter, gone: set[int]
) -> None:
    memory = KnowledgeMemory(trigram_bundle)
    for place, metadata in enumerate(table):
        label = NewLabel(id=f"label {place}", text="tent", metadata=metadata)
        memory.apply([put(2 * place + 1, label)])
        if place in gone:
            memory.apply([delete(2 * place + 2, label.id)])
    left = [row for place, row in enumerate(table) if place not in gone]
    known = {name for row in left for name in row}
    absent = {one.field for one in wanted.conditions() if one.field not in known}
    never = {
        (one.kind, one.field, one.operator)
        for one in wanted.conditions()
        if one.operator != "exists"
        and one.field in known
        and one.kind not in kinds_in(left, one.field)
    }
    warnings = filtered(memory.view, wanted).view.filter_warnings
    assert {said for said in warnings if "has the field" in said} == {
        f"no label has the field '{name}'" for name in absent
    }
    named = [said for said in warnings if "has the field" not in said]
    assert len(named) == len({one[:2] for one in never})
    for kind, field, operator in never:
        [said] = [one for one in named if one.startswith(f"no label has a {kind} as '{field}'")]
        assert f"`{operator}`" in said
