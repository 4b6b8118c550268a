"""JSON Web Tokens over HTTP: whom they admit, to which labels, and how keys are replaced."""

from collections.abc import Callable
from pathlib import Path
from time import time

import pytest

from service.http.access import Access
from service.http.tokens import read_tokens
from service.settings import ServerSettings
from tests.support.http.problems import assert_problem
from tests.support.http.provider import bearer, public_jwk, publish, token
from tests.support.serving import LocalService, ServerProcess
from tests.support.waiting import wait_for

TENT = {"queries": ["tent"]}
AXE = {"text": "ice axe"}


@pytest.fixture
def key_set(tmp_path: Path) -> Path:
    return publish(tmp_path / "jwks.json", public_jwk("ES256", kid="a"))


@pytest.fixture
def guarded(serve: Callable[..., LocalService], key_set: Path) -> LocalService:
    server = ServerSettings(metrics_need_key=True)
    return serve(access=Access(tokens=read_tokens(key_set, server)), server=server)


def sent(**claims: object) -> dict[str, str]:
    return bearer(token(kid="a", **claims))


def test_scopes_admit_and_refusals_say_why(guarded: LocalService) -> None:
    everything = sent(scope="read write admin metrics")
    for _ in range(2):
        assert guarded.post("/predict", TENT, headers=everything).status_code == 200
    assert guarded.post("/labels", {"labels": [AXE]}, headers=everything).status_code == 200
    assert guarded.get("/metrics", headers=everything).status_code == 200
    problem = assert_problem(
        guarded.post("/labels", {"labels": [AXE]}, headers=sent(scope="")), 403
    )
    assert problem["detail"] == "this token lacks the scope 'write'"

    assert_problem(guarded.get("/metrics"), 401)
    absent = guarded.post("/predict", TENT)
    assert assert_problem(absent, 401)["title"] == "API key needed"
    assert "error" not in absent.headers["www-authenticate"]
    for wrong, said in (
        (sent(exp=time() - 60), "has expired"),
        (sent(tenant=None), "lacks the claim 'tenant'"),
        (sent(tenant="brand=a", scope="admin"), "read and write at most"),
        (bearer(token("RS256", kid="b")), "unknown key"),
        (bearer("x" * 20_000), "bytes"),
        (bearer("a.b.c"), "neither a known API key nor a valid JSON Web Token"),
    ):
        answer = guarded.post("/predict", TENT, headers=wrong)
        problem = assert_problem(answer, 401)
        assert (problem["title"], said in problem["detail"]) == ("Invalid token", True)
        assert wrong["authorization"].split()[1] not in answer.text
        expected = 'Bearer realm="keymatch", error="invalid_token"'
        assert answer.headers["www-authenticate"] == expected
    assert guarded.get("/health/live").status_code == 200
    operation = guarded.get("/openapi.json").json()["paths"]["/predict"]["post"]
    assert operation["security"] == [{"api_key": []}]


def test_a_tenants_token_sees_and_changes_only_the_tenants_labels(guarded: LocalService) -> None:
    acme, other = sent(tenant="brand=acme"), sent(tenant="brand=other")
    for tenant in (acme, other):
        posted = guarded.post("/labels", {"labels": [{"id": "axe", **AXE}]}, headers=tenant)
        assert posted.status_code == 200
    assert guarded.post("/labels", {"labels": [{"text": "rope"}]}, headers=other).status_code == 200

    def ids(who: dict[str, str]) -> set[str]:
        listed = guarded.get("/labels", headers=who).json()["labels"]
        query = {"queries": ["ice axe"], "top_k": 100}
        answer = guarded.post("/predict", query, headers=who).json()
        found = {keyword["id"] for keyword in answer["results"][0]["keywords"]}
        assert found == {label["id"] for label in listed}
        return found

    assert ids(acme) == {"axe"}
    assert ids(other) == {"axe", "rope"}
    assert guarded.request("DELETE", "/labels/rope", headers=acme).status_code == 404
    assert guarded.request("DELETE", "/labels/axe", headers=acme).status_code == 200
    assert ids(other) == {"axe", "rope"}
    assert "brand=other::axe" in {
        label["id"] for label in guarded.get("/labels?limit=1000", headers=sent()).json()["labels"]
    }
    assert_problem(guarded.post("/admin/snapshot", {"bundle": "b"}, headers=acme), 403)


def test_two_clients_may_use_the_same_idempotency_key(guarded: LocalService) -> None:
    def post(text: str, **claims: object) -> int:
        headers = {**sent(**claims), "idempotency-key": "k"}
        return guarded.post("/labels", {"labels": [{"text": text}]}, headers=headers).status_code

    assert [post("a"), post("a"), post("b")] == [200, 200, 409]
    assert [post("b", sub="other"), post("b", tenant="brand=a")] == [200, 200]


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_server_reads_the_named_key_set_and_follows_its_changes(
    start: Callable[..., ServerProcess], key_set: Path, workers: str
) -> None:
    environment = {"KEYMATCH_JWKS": str(key_set)}
    server = start("--host", "0.0.0.0", "--workers", workers, env=environment)

    def statuses(headers: dict[str, str]) -> set[int]:
        """The statuses of several requests on new connections, which reach all workers."""
        return {
            server.client.post(
                "/predict", json=TENT, headers={**headers, "connection": "close"}
            ).status_code
            for _ in range(8)
        }

    old, new = sent(), bearer(token("RS256", kid="b"))
    assert statuses({}) == {401}
    assert statuses(old) == {200}
    assert statuses(new) == {401}
    publish(key_set, public_jwk("RS256", kid="b"))
    wait_for(lambda: statuses(new) == {200} and statuses(old) == {401})
    assert server.stop() == 0
    logged = server.log.read_text()
    assert not any(one["authorization"].split()[1] in logged for one in (old, new))
