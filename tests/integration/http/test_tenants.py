"""Tenants over HTTP: a key of a tenant sees and changes the tenant's part, and learns of no other.

The service of a random history answers a tenant as a service would that the other tenant never
used, but for version numbers and durations.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from service.core.tenant import Tenant
from service.http.access import Access, ApiKey
from tests.support.commands import run
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service

FIELD = "advertiser"
TENANTS = ("acme", "apex")
NAMES = ("root", *TENANTS)
BOTH = frozenset({"read", "write"})
OF_ALL = ("version", "timing_ms")  # what an answer tells a tenant about all


def key_of(name: str) -> ApiKey:
    tenant = None if name == "root" else Tenant(FIELD, name)
    digest = hashlib.sha256(name.encode()).hexdigest()
    scopes = BOTH if tenant else BOTH | {"admin"}
    return ApiKey(name=name, scopes=scopes, digest=digest, tenant=tenant)


ACCESS = Access(keys=tuple(map(key_of, NAMES)))


class Client:
    """Sends requests with one API key."""

    def __init__(self, service: LocalService, name: str) -> None:
        self.service, self.name = service, name

    def __call__(self, method: str, path: str, document: Any = None, **how: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.name}", **how.pop("headers", {})}
        body = {} if document is None else {"json": document}
        return self.service.request(method, path, headers=headers, **body, **how)

    def labels(self, *labels: dict[str, Any]) -> Any:
        answer = self("POST", "/labels", {"labels": list(labels)})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def found(self, query: str, **options: Any) -> list[str]:
        answer = self("POST", "/predict", {"queries": [query], "top_k": 50, **options})
        assert answer.status_code == 200, answer.text
        return [keyword["id"] for keyword in answer.json()["results"][0]["keywords"]]


@contextmanager
def clients(bundle: Path, state: Path, **how: Any) -> Iterator[dict[str, Client]]:
    with local_service(bundle, state, access=ACCESS, **how) as service:
        yield {name: Client(service, name) for name in NAMES}


@pytest.fixture
def each(tiny_bundle_folder: Path, tmp_path: Path) -> Iterator[dict[str, Client]]:
    """A client of each key, on one fresh service."""
    with clients(tiny_bundle_folder, tmp_path / "state") as made:
        yield made


def test_each_tenant_has_its_own_labels_under_its_own_ids(each: dict[str, Client]) -> None:
    root, acme, apex = each["root"], each["acme"], each["apex"]
    acme.labels({"id": "pm", "text": "password manager", "queries": ["bitwarden"]})
    assert apex.labels({"id": "pm", "text": "red tent"})["labels"][0]["status"] == "created"
    assert acme.found("red tent") == acme.found("bitwarden") == ["pm"]
    assert acme("GET", "/labels/pm").json()["text"] == "password manager"
    assert apex("GET", "/labels/pm").json()["text"] == "red tent"
    assert apex("GET", "/labels/pm").json()["metadata"] == {FIELD: "apex"}
    assert {f"{FIELD}=acme::pm", "tent"} <= set(root.found("password tent"))
    for path in ("tent", f"{FIELD}=acme::pm"):  # the bundle's, another tenant's
        for method in ("GET", "DELETE"):
            assert_problem(apex(method, f"/labels/{quote(path, safe='')}"), 404)
    assert apex("DELETE", "/labels/pm").status_code == 200
    assert apex.found("red tent") == [] and acme.found("red tent") == ["pm"]


def test_a_tenant_writes_only_its_value(each: dict[str, Client]) -> None:
    root, acme = each["root"], each["acme"]
    wrong = {"labels": [{"text": "a"}, {"text": "b", "metadata": {FIELD: "apex"}}]}
    assert_problem(acme("POST", "/labels", wrong), 422, field=f"labels.1.metadata.{FIELD}")
    assert acme("GET", "/labels").json()["labels"] == []
    acme.labels({"id": "a", "text": "a", "metadata": {FIELD: "acme", "price": 3}})
    for value in ("apex", None, ["acme"]):
        merge = {"metadata": {FIELD: value}}
        assert_problem(acme("PATCH", "/labels/a", merge), 422, field=f"metadata.{FIELD}")
    assert acme("PATCH", "/labels/a", {"metadata": {"price": 4}}).json()["id"] == "a"
    assert acme("GET", "/labels/a").json()["metadata"] == {FIELD: "acme", "price": 4}
    assert root("GET", f"/labels/{FIELD}=acme::a").status_code == 200
    lines = b'{"text": "s"}\n{"text": "t", "metadata": {"advertiser": "apex"}}\n'
    headers = {"content-type": "application/x-ndjson"}
    answer = acme("POST", "/labels", content=lines, headers=headers)
    first, second = map(orjson.loads, answer.content.splitlines())
    assert first["id"] == "s" and second["error"]["errors"][0]["field"] == f"metadata.{FIELD}"


def test_labels_that_others_post_for_a_tenant_are_the_tenants(each: dict[str, Client]) -> None:
    root, acme, apex = each["root"], each["acme"], each["apex"]
    root.labels(
        {"id": "given", "text": "light tent", "metadata": {FIELD: "acme"}},
        {"id": "shared", "text": "light lamp", "metadata": {FIELD: ["acme", "apex"]}},
    )
    assert set(acme.found("light tent")) == {"given", "shared"}
    assert apex.found("light tent") == ["shared"]
    assert acme.labels({"text": "Light  TENT"})["labels"][0]["id"] == "given"
    assert acme("PATCH", "/labels/given", {"text": "light tents"}).json()["status"] == "updated"
    # A label of several tenants is changed by none.
    click = {"instances": [{"query": "q", "labels": ["shared"]}]}
    assert_problem(apex("POST", "/instances", click), 422, field="instances.0.labels.0")
    assert_problem(apex("DELETE", "/labels/shared"), 404)
    assert_problem(apex("PATCH", "/labels/shared", {"text": "mine"}), 404)
    assert apex("GET", "/labels/shared").json()["text"] == "light lamp"
    assert root("DELETE", "/labels/given").status_code == 200
    assert acme.found("light tent") == ["shared"]


def test_no_tenant_sees_two_labels_under_one_id(each: dict[str, Client]) -> None:
    root, acme = each["root"], each["acme"]
    acme.labels({"id": "pm", "text": "password manager"})
    of_acme = {"metadata": {FIELD: "acme"}}
    for value in ("acme", ["acme", "apex"]):
        labels = {"labels": [{"id": "pm", "text": "pen", "metadata": {FIELD: value}}]}
        refused = root("POST", "/labels", labels)
        assert_problem(refused, 422, field="id")
        assert "'advertiser=acme' has another label that it sees as 'pm'" in refused.text
    root.labels({"id": "pm", "text": "pen"}, {"id": "both", "text": "p", **of_acme})
    assert_problem(root("PATCH", "/labels/pm", of_acme), 422, field="id")
    root("PATCH", "/labels/both", {"metadata": {FIELD: ["acme", "apex"]}}).raise_for_status()
    refused = acme("POST", "/labels", {"labels": [{"id": "both", "text": "mine"}]})
    assert_problem(refused, 422, field="id")
    [made] = root.labels({"text": "PM", **of_acme})["labels"]
    assert made["id"] == "pm~2"


def test_tenants_with_hostile_names_share_no_id_and_no_request(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    """The joined names were equal: `a=b` and `:c` with `a=b:` and `c`, and so on."""
    tenants = [Tenant("a", "b"), Tenant("a", "b:"), Tenant("f", "v"), Tenant("f", "v:x")]
    digests = (hashlib.sha256(str(one).encode()).hexdigest() for one in tenants)
    keys = tuple(
        ApiKey(name="shop", scopes=BOTH, digest=digest, tenant=tenant)
        for tenant, digest in zip(tenants, digests, strict=True)
    )
    with local_service(tiny_bundle_folder, tmp_path / "s", access=Access(keys=keys)) as service:
        first, second, third, fourth = (Client(service, str(one)) for one in tenants)
        first.labels({"id": ":c", "text": "secret red tent"})
        assert_problem(second("GET", "/labels/c"), 404)
        assert second.labels({"id": "c", "text": "pen"})["labels"][0]["status"] == "created"
        assert first("GET", "/labels/:c").json()["text"] == "secret red tent"
        for client, key, text in ((third, "x:secret", "one"), (fourth, "secret", "two")):
            headers = {"idempotency-key": key}
            for _ in range(2):
                answer = client("POST", "/labels", {"labels": [{"text": text}]}, headers=headers)
                assert answer.json()["labels"][0] == {
                    "id": text, "status": "created", "neighbours": []
                }  # fmt: skip
            assert client("GET", f"/labels/{text}").json()["text"] == text


def test_a_tenant_sees_its_own_value_alone(each: dict[str, Client]) -> None:
    """A label of several tenants names the others in a list."""
    metadata = {FIELD: ["apex", "acme"], "color": ["a"]}
    each["root"].labels({"id": "shared", "text": "vortex gear", "metadata": metadata})
    for name in TENANTS:
        shown = {FIELD: name, "color": ["a"]}
        [label] = each[name]("GET", "/labels").json()["labels"]
        assert (label["id"], label["metadata"]) == ("shared", shown)
        asked = {"queries": ["vortex gear"], "explain": True}
        [result] = each[name]("POST", "/predict", asked).json()["results"]
        assert [keyword["metadata"] for keyword in result["keywords"]] == [shown]
        assert each[name]("GET", "/labels/shared").json()["metadata"] == shown
        assert each[name]("DELETE", "/labels/shared").status_code == 404
    whole = each["root"]("GET", "/labels/shared").json()
    assert whole["metadata"][FIELD] == ["apex", "acme"]


def test_clicks_rules_and_pages_are_a_tenants_own(each: dict[str, Client]) -> None:
    root, acme, apex = each["root"], each["acme"], each["apex"]
    for client in (acme, apex):
        client.labels(*({"id": f"{n}", "text": f"tent {n} {client.name}"} for n in range(3)))
    click = {"instances": [{"query": "shelter", "labels": ["1"]}]}
    assert acme("POST", "/instances", click).json()["accepted"] == 1
    assert acme("GET", "/labels/1").json()["clicked"]["total"] == 1
    assert apex("GET", "/labels/1").json()["clicked"]["total"] == 0
    hide = {"rules": [{"id": "r", "then": {"hide": ["0"]}}]}
    assert acme("POST", "/rules", hide).json()["rules"] == [{"id": "r", "status": "created"}]
    assert "0" not in acme.found("tent") and "0" in apex.found("tent")
    assert f"{FIELD}=acme::0" in root.found("tent")
    assert apex("GET", "/rules").json()["rules"] == root("GET", "/rules").json()["rules"] == []
    assert_problem(apex("DELETE", "/rules/r"), 404)
    foreign = {"rules": [{"id": "x", "then": {"hide": [f"{FIELD}=acme::0"]}}]}
    assert_problem(apex("POST", "/rules", foreign), 422, field="rules.0.then.hide.0")
    assert acme("GET", "/rules/r").json() == {"id": "r", **hide["rules"][0]}
    first = acme("GET", "/labels", params={"limit": 2}).json()
    rest = acme("GET", "/labels", params={"after": first["next"]}).json()
    assert [label["id"] for label in [*first["labels"], *rest["labels"]]] == ["0", "1", "2"]
    assert acme("GET", "/info").json()["memory"] == {"labels": 3, "rules": 1}
    assert apex("GET", "/info").json()["memory"] == {"labels": 3, "rules": 0}


def test_warnings_concern_the_tenants_own_fields(each: dict[str, Client]) -> None:
    acme, apex = each["acme"], each["apex"]
    acme.labels({"text": "tent", "metadata": {"price": 3}})
    apex.labels({"text": "tent"})
    asked = {"queries": ["tent"], "filter": {"any": [{"field": "price", "gt": 1}]}}
    assert "warnings" not in acme("POST", "/predict", asked).json()
    assert apex("POST", "/predict", asked).json()["warnings"]


def test_a_tenant_has_no_other_routes(each: dict[str, Client]) -> None:
    acme = each["acme"]
    assert_problem(acme("GET", "/items"), 403)
    assert_problem(acme("POST", "/items", {"items": [{"text": "a"}]}), 403)
    assert_problem(acme("POST", "/admin/snapshot", {}), 403)
    assert_problem(acme("POST", "/admin/reload", {"bundle": "x"}), 403)


def test_equal_idempotency_keys_of_two_tenants_are_two(each: dict[str, Client]) -> None:
    key = {"headers": {"Idempotency-Key": "k"}}
    for name in TENANTS:
        document = {"labels": [{"id": "a", "text": f"tent of {name}"}]}
        for _ in range(2):
            answer = each[name]("POST", "/labels", document, **key)
            assert answer.json()["labels"][0]["status"] == "created"


def test_tenants_survive_snapshot_reload_and_restart(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    places = make_bundle(name="shop"), tmp_path / "state"
    rule = {"rules": [{"id": "r", "then": {"hide": ["b"]}}]}
    for round_number in range(3):
        with clients(*places, bundles=tmp_path) as each:
            if not round_number:
                for name in TENANTS:
                    each[name].labels({"id": "a", "text": "tent"}, {"id": "b", "text": "red tent"})
                assert each["acme"]("POST", "/rules", rule).status_code == 200
            else:
                assert each["root"]("POST", "/admin/reload", {"bundle": "next"}).status_code == 200
            assert each["acme"].found("tent") == ["a"]
            assert set(each["apex"].found("tent")) == {"a", "b"}
            if not round_number:
                snapshot = each["root"]("POST", "/admin/snapshot", {"bundle": "next"})
                assert snapshot.status_code == 200


def test_a_tenants_part_becomes_a_bundle_of_its_own(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    bundle, state, out = make_bundle(name="shop"), tmp_path / "state", tmp_path / "acme"
    rule = {"rules": [{"id": "r", "then": {"pin": [{"id": "b", "position": 1}]}}]}
    with clients(bundle, state) as each:
        for name in TENANTS:
            for label_id, text in (("a", "red tent"), ("b", "tent")):
                each[name].labels({"id": label_id, "text": text, "queries": [f"{text} {name}"]})
            click = {"instances": [{"query": f"shelter {name}", "labels": ["a"]}]}
            assert each[name]("POST", "/instances", click).status_code == 200
        assert each["acme"]("POST", "/rules", rule).status_code == 200
        expected = each["acme"].found("red tent")
    command = ("--bundle", bundle, "--state", state, "--out", out, "--tenant", f"{FIELD}=acme")
    ended = run("service", "snapshot", *command)
    assert ended.returncode == 0, ended.stderr
    content = b"".join(file.read_bytes() for file in out.rglob("*") if file.is_file())
    assert b"acme" in content and b"apex" not in content
    with local_service(out, tmp_path / "other") as service:
        asked = {"queries": ["red tent"], "top_k": 50}
        [result] = service.post("/predict", asked).json()["results"]
        assert [keyword["id"] for keyword in result["keywords"]] == expected == ["b", "a"]
        assert service.get("/rules/r").json() == {"id": "r", **rule["rules"][0]}
        shown = service.get("/labels/a").json()
        assert shown["clicked"] == {"total": 1, "newest": ["shelter acme"]}
        assert shown["queries"] == ["red tent acme"]


# Random histories --------------------------------------------------------------------------

words = st.sampled_from(["tent", "red tent", "light lamp", "trail boots", "lihgt lamp"])
ids = st.sampled_from(["a", "b", "tent", "new one", "of none", *(f"of {one}" for one in TENANTS)])
metadata = st.fixed_dictionaries(
    {}, optional={"price": st.sampled_from([1, 5]), FIELD: st.sampled_from(TENANTS)}
)
label = st.fixed_dictionaries(
    {"text": words},
    optional={
        "id": ids,
        "aliases": st.lists(words, max_size=2),
        "queries": st.lists(words, max_size=2),
        "metadata": metadata,
        "boost": st.sampled_from([0.5, 3.0]),
    },
)
consequences = st.one_of(
    st.fixed_dictionaries({"hide": st.lists(ids, min_size=1, max_size=2)}),
    st.builds(lambda one: {"pin": [{"id": one, "position": 1}]}, ids),
    st.builds(lambda one: {"boost": {"labels": [one], "factor": 4.0}}, ids),
)
rule = st.fixed_dictionaries(
    {"id": st.sampled_from(["r", "s"]), "then": consequences},
    optional={"when": st.builds(lambda query: {"query": query, "match": "contains"}, words)},
)
filters = st.sampled_from(
    [
        {"any": [{"field": "price", "gt": 2}]},
        {"none": [{"field": FIELD, "eq": "apex"}]},
        {"all": [{"field": "none such", "exists": False}]},
    ]
)
asked = st.fixed_dictionaries(
    {"queries": st.lists(words, min_size=1, max_size=2), "explain": st.booleans()},
    optional={
        "filter": filters,
        "spelling": st.just("auto"),
        "diversity": st.just(0.5),
        "match": st.just(["exact", "phrase"]),
    },
)
instance = st.fixed_dictionaries({"query": words, "labels": st.lists(ids, min_size=1, max_size=2)})
page = st.fixed_dictionaries(
    {}, optional={"filter": filters.map(lambda f: orjson.dumps(f).decode()), "text": words}
)


def request(method: str, path: str, document: Any = None, params: Any = None) -> Any:
    return method, path, document, params


STREAM = {"content-type": "application/x-ndjson"}
requests = st.one_of(
    st.builds(lambda lines: request("STREAM", "/labels", lines), st.lists(label, max_size=3)),
    st.builds(lambda one: request("POST", "/labels", {"labels": [one]}), label),
    st.builds(lambda one: request("POST", "/labels", {"labels": [one]}), label),
    st.builds(lambda one: request("POST", "/instances", {"instances": [one]}), instance),
    st.builds(
        lambda one: request("POST", "/instances", {"instances": [one], "unknown": "skip"}), instance
    ),
    st.builds(lambda one: request("POST", "/rules", {"rules": [one]}), rule),
    st.builds(lambda one: request("DELETE", f"/labels/{quote(one)}"), ids),
    st.builds(lambda one: request("GET", f"/labels/{quote(one)}"), ids),
    st.builds(
        lambda one, given, aliases: request(
            "PATCH", f"/labels/{quote(one)}", {"metadata": given, "aliases": aliases}
        ),
        *(ids, metadata, st.lists(words, max_size=1)),
    ),
    st.builds(lambda one: request("DELETE", f"/rules/{one}"), st.sampled_from(["r", "s"])),
    st.just(request("GET", "/rules")),
    st.just(request("GET", "/info")),
    st.builds(lambda params: request("GET", "/labels", None, params), page),
    st.builds(lambda one: request("POST", "/predict", one), asked),
    st.builds(lambda one: request("POST", "/predict", one), asked),
)
# What the root posts for a tenant, or for none, has ids of its own, so no label changes hands.
of_root = st.builds(
    lambda owner, one: (
        owner,
        request(
            "POST",
            "/labels",
            {
                "labels": [
                    {
                        **one,
                        "id": f"of {owner}",
                        "metadata": {} if owner == "none" else {FIELD: owner},
                    }
                ]
            },
        ),
    ),
    *(st.sampled_from(["none", *TENANTS]), label),
) | st.builds(
    lambda owner, query: (
        owner,
        request("POST", "/instances", {"instances": [{"query": query, "labels": [f"of {owner}"]}]}),
    ),
    *(st.sampled_from(["none", *TENANTS]), words),
)
of_tenants = st.builds(lambda name, one: (name, name, one), st.sampled_from(TENANTS), requests)
history_steps = of_tenants | of_root.map(lambda step: ("root", *step))
histories = st.lists(history_steps, min_size=10, max_size=40)


def send(client: Client, one: Any) -> httpx.Response:
    method, path, document, params = one
    if method == "STREAM":
        lines = b"\n".join(map(orjson.dumps, document))
        return client("POST", path, content=lines, headers=STREAM)
    return client(method, path, document, params=params)


def comparable(answer: httpx.Response) -> Any:
    """Return an answer without what a tenant may see of others.

    Version numbers count the writes of all. Rows that tie are in the order of their last write,
    which may be another tenant's click of the same query: it orders evidence, and sums of votes.
    """

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {name: bare(of) for name, of in value.items() if name not in OF_ALL}
            if "evidence" in kept:
                kept["evidence"].sort(key=repr)
            return kept
        if isinstance(value, list):
            return [bare(one) for one in value]
        return round(value, 6) if isinstance(value, float) else value

    lines = answer.content.splitlines()  # one, but for a stream
    return answer.status_code, [bare(orjson.loads(line)) for line in lines]


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # to shrink a history takes minutes
)
@given(history=histories)
def test_a_tenant_is_answered_as_if_there_were_no_other(
    tiny_bundle_folder: Path, history: Sequence[tuple[str, str, Any]]
) -> None:
    with ExitStack() as running:
        folder = Path(running.enter_context(TemporaryDirectory()))
        together = running.enter_context(clients(tiny_bundle_folder, folder / "together"))
        alone = {
            name: running.enter_context(clients(tiny_bundle_folder, folder / name))
            for name in TENANTS
        }
        for sender, owner, one in history:
            answer = send(together[sender], one)
            for name in TENANTS:
                if owner not in (name, "none"):
                    continue
                expected = send(alone[name][sender], one)
                if sender == name:
                    assert comparable(answer) == comparable(expected)
        for name in TENANTS:  # all that each may see at the end
            for one in (
                request("GET", "/labels"),
                request("GET", "/rules"),
                request("GET", "/info"),
                request("POST", "/predict", {"queries": ["tent", "lihgt lamp"], "explain": True}),
            ):
                answer, expected = (send(of[name], one) for of in (together, alone[name]))
                assert comparable(answer) == comparable(expected)
