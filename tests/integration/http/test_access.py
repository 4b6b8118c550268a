"""API keys: which requests a key and its scopes allow, and when keys are required."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from service.http.access import read_keys
from service.settings import ServerSettings
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, ServerProcess

TENT = {"queries": ["tent"]}
AXE = {"labels": [{"text": "ice axe"}]}


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(
        "# name:scopes:sha256(key)\n"
        "\n"
        f"shop:read:{digest('reads')}\n"
        f"  # the feed\n"
        f" feed:write:{digest('writes')} \n"
        f"owner:read,write,admin:{digest('everything').upper()}\n"
        f"prometheus:metrics:{digest('scrapes')}\n"
    )
    return file


@pytest.fixture
def guarded(serve: Callable[..., LocalService], keys: Path) -> LocalService:
    return serve(access=read_keys(keys), server=ServerSettings(metrics_need_key=True))


def test_no_key_or_an_unknown_one_is_a_401_whatever_the_body_is(guarded: LocalService) -> None:
    unknown = bearer(digest("reads"))
    for answer in (
        guarded.post("/predict", TENT),
        guarded.post("/labels", AXE, headers=unknown),
        *(guarded.get(path, headers=unknown) for path in ("/info", "/labels/tent")),
        *(guarded.post("/predict", content=body) for body in (b"", b"{", b"x" * 5_000_000)),
    ):
        assert_problem(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_scope_admits_to_its_routes_and_a_key_without_it_is_a_403(guarded: LocalService) -> None:
    for key in ("reads", "everything"):
        assert guarded.post("/predict", TENT, headers=bearer(key)).status_code == 200
        assert guarded.get("/info", headers=bearer(key)).status_code == 200
    for key in ("writes", "everything"):
        assert guarded.post("/labels", AXE, headers=bearer(key)).status_code == 200
    lower_case = {"authorization": "bearer reads"}
    assert guarded.post("/predict", TENT, headers=lower_case).status_code == 200
    problem = assert_problem(guarded.post("/labels", AXE, headers=bearer("reads")), 403)
    assert "'write'" in problem["detail"]
    assert_problem(guarded.post("/predict", TENT, headers=bearer("writes")), 403)
    assert_problem(guarded.get("/labels/tent", headers=bearer("writes")), 403)
    for path in ("/health/live", "/health/ready"):
        assert guarded.get(path).status_code == 200
    # Here /metrics needs a key, too.
    assert_problem(guarded.get("/metrics"), 401)
    assert_problem(guarded.get("/metrics", headers=bearer("everything")), 403)
    assert guarded.get("/metrics", headers=bearer("scrapes")).status_code == 200
    assert_problem(guarded.get("/info", headers=bearer("scrapes")), 403)
    documented = guarded.get("/openapi.json").json()["paths"]["/metrics"]["get"]
    assert {"401", "403"} <= documented["responses"].keys()


def test_a_server_reads_its_keys_from_the_named_file(
    start: Callable[..., ServerProcess], keys: Path
) -> None:
    server = start("--host", "0.0.0.0", env={"KEYMATCH_API_KEYS": str(keys)})
    assert_problem(server.client.post("/predict", json=TENT), 401)
    assert server.client.get("/metrics").status_code == 200  # without that setting
    answer = server.client.post("/predict", json=TENT, headers=bearer("reads"))
    assert answer.status_code == 200
    logged = server.log.read_text()
    assert "reads" not in logged
    assert digest("reads") not in logged


def test_allow_anonymous_serves_everybody_and_the_access_log_can_be_turned_off(
    start: Callable[..., ServerProcess],
) -> None:
    server = start("--host", "0.0.0.0", "--allow-anonymous", "--no-access-log")
    assert server.client.post("/predict", json=TENT).status_code == 200
    assert server.stop() == 0  # now all log lines are written
    assert server.logged("ready") and not server.logged("request")
