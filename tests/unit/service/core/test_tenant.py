"""Tenants with hostile names: their ids never meet, and each label has one id in each view."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from service.core.bundle.bundle import Bundle
from service.core.errors import InvalidInput
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.label_table import LabelTable
from service.core.page_cursor import FIRST_PAGE, PageCursor
from service.core.tenant import Tenant, namespace
from service.core.types import NewLabel
from service.http.access import ApiKey
from tests.support.changes import delete, put

FIELD = "f"
# Characters and pieces of which names are made that look like joined ones.
names = st.one_of(
    st.text(st.sampled_from(":=\\@~/ae\u0301\u2028"), max_size=6),
    st.sampled_from(["", "::", "a::b", f"{FIELD}=a", f"{FIELD}=a::", "a\\", "a\\:", "a\\::", "é"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
)
values = names.filter(bool)


# Joined names -----------------------------------------------------------------------------


@given(one=st.tuples(names, names), other=st.tuples(names, names), first=names, second=names)
@example(one=("a=b", ""), other=("a=b:", ""), first=":c", second="c")
@example(one=("a", ""), other=("a", "b"), first="::b", second="")
def test_no_two_owners_share_a_name(
    one: tuple[str, str], other: tuple[str, str], first: str, second: str
) -> None:
    same = namespace(*one) + first == namespace(*other) + second
    assert same == ((one, first) == (other, second))
    assert namespace(*one).startswith(namespace(*other)) == (one == other)


@given(one=values, other=values, first=names, second=names)
@example(one="b", other="b:", first=":c", second="c")
def test_tenants_store_and_know_their_ids_apart(
    one: str, other: str, first: str, second: str
) -> None:
    tenant, stored = Tenant(FIELD, one), Tenant(FIELD, one).stored_id(first)
    assert (stored == Tenant(FIELD, other).stored_id(second)) == ((one, first) == (other, second))
    assert tenant.shown_id(stored) == first
    assert tenant.other_id(tenant.other_id(second)) == second
    assert tenant.shown_id(tenant.other_id(second)) == tenant.shown_id(second)


@given(one=names, other=names, tenants=st.tuples(values, values), first=names, second=names)
@example(one="k", other="k", tenants=("v", "v:x"), first="x:secret", second="secret")
def test_clients_never_share_an_idempotency_key(
    one: str, other: str, tenants: tuple[str, str], first: str, second: str
) -> None:
    clients = [
        ApiKey(name=name, scopes=frozenset(), tenant=tenant)
        for name in {one, other}
        for tenant in {None, *(Tenant(FIELD, value) for value in tenants)}
    ]
    stored = {client.client + key for client in clients for key in {first, second}}
    assert len(stored) == len(clients) * len({first, second})


@given(ids=st.lists(names.filter(bool), unique=True, max_size=5))
def test_cursors_of_different_ids_are_different(ids: list[str]) -> None:
    ids += [50 * one for one in ids]
    cursors = [str(PageCursor.behind(one)) for one in ids]
    assert len(set(cursors)) == len(set(ids))
    assert [str(PageCursor.parse(one, field="after")) for one in cursors] == cursors


# What tenants see -------------------------------------------------------------------------

TENANTS = (None, Tenant(FIELD, "a"), Tenant(FIELD, "a:"), Tenant(FIELD, "a::b"), Tenant("g", "a"))
IDS = [
    *("x", ":x", "::x", "b::x", "tent"),
    *(tenant.stored_id("x") for tenant in TENANTS if tenant),
    *(tenant.stored_id("tent") for tenant in TENANTS if tenant),
]


@dataclass(frozen=True)
class Post:
    """A label that a tenant, or a client without one, posts or deletes."""

    tenant: Tenant | None
    id: str
    text: str
    metadata: dict[str, str | tuple[str, ...]]
    deleted: bool = False


of_fields = st.fixed_dictionaries(
    {},
    optional={
        FIELD: st.sampled_from(["a", "a:", "a::b", ("a", "a:"), ("a", "z"), "z"]),
        "g": st.sampled_from(["a", "z"]),
    },
)
posts = st.builds(
    Post,
    tenant=st.sampled_from(TENANTS),
    id=st.sampled_from([*IDS, "", ""]),
    text=st.sampled_from(["x", "tent", "::x", "Tent "]),
    metadata=of_fields,
    deleted=st.sampled_from([False, False, False, True]),
)


def written(memory: KnowledgeMemory, post: Post) -> str:
    """Write as `PostLabels` does; return the id that the tenant sees, or an error's message."""
    labels, tenant = memory.view.labels.of(post.tenant), post.tenant
    metadata = post.metadata if tenant is None else {**post.metadata, tenant.field: tenant.value}
    sequence = memory.view.version + 1
    if post.deleted:
        known = labels.column(post.id)
        if known is None:
            return "nothing to delete"
        memory.apply([delete(sequence, labels.stored_id_at(known))])
        return "deleted"
    try:
        label = labels.identified(NewLabel(id=post.id, text=post.text, metadata=metadata))
    except InvalidInput as error:
        return str(error)
    memory.apply([put(sequence, label)])
    return label.id if tenant is None else tenant.shown_id(label.id)


def walked(labels: LabelTable, size: int) -> Iterator[tuple[str, int]]:
    """Yield the ids and columns of all labels, page by page as GET /labels does."""
    after = FIRST_PAGE
    while page := labels.page(after=after, size=size, every=True):
        yield from ((label.id, label.index) for label in page)
        after = PageCursor.parse(str(PageCursor.behind(page[-1].id)), field="after")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(posts, max_size=8), size=st.integers(1, 3))
@example(
    history=[
        Post(Tenant(FIELD, "a"), "x", "x", {}),
        Post(None, "x", "x", {FIELD: "a"}),
        Post(None, Tenant(FIELD, "a").stored_id("tent"), "t", {FIELD: "a"}),
        Post(None, "tent", "t", {FIELD: ("a", "z")}),
    ],
    size=1,
)
def test_pages_list_each_label_once_under_the_id_that_returns_it(
    trigram_bundle: Bundle, history: Sequence[Post], size: int
) -> None:
    memory = KnowledgeMemory(trigram_bundle)
    for post in history:
        written(memory, post)
        for tenant in TENANTS:
            own = memory.of_tenant(memory.view, tenant).labels
            listed = list(walked(own, size))
            assert len(listed) == len({column for _, column in listed}) == len(own)
            assert all(one < other for (one, _), (other, _) in pairwise(listed))
            whole = memory.view.labels.of(tenant)
            assert [whole.shown_column(shown) for shown, _ in listed] == [
                column for _, column in listed
            ]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(posts, max_size=10))
def test_a_tenant_learns_nothing_of_another(
    trigram_bundle: Bundle, history: Sequence[Post]
) -> None:
    """Its writes have the same results, and its pages are the same, as if the other wrote none."""
    tenant, others = Tenant(FIELD, "a"), (Tenant(FIELD, "a:"), Tenant(FIELD, "a::b"))
    history = [replace(post, metadata={}) for post in history if post.tenant in (tenant, *others)]
    both, alone = KnowledgeMemory(trigram_bundle), KnowledgeMemory(trigram_bundle)
    for post in history:
        result = written(both, post)
        if post.tenant == tenant:
            assert written(alone, post) == result
        pages = [
            [(label.id, label.text) for label in labels.page(size=99, every=True)]
            for labels in (memory.of_tenant(memory.view, tenant).labels for memory in (both, alone))
        ]
        assert pages[0] == pages[1]
