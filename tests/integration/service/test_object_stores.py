"""Services with bundles in a real S3 server: fetch, restart, snapshot, reload, and refusals."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.__main__ import app
from service.core.bundle import manifest
from service.keymatch import keymatch
from tests.support.commands import Refused, run
from tests.support.http.problems import assert_problem
from tests.support.s3 import NO_CREDENTIALS, SECRET, Bucket, S3Server, s3_server
from tests.support.serving import ServerProcess, server_process
from tests.support.waiting import wait_for

AXE = {"labels": [{"id": "axe", "text": "ice axe"}]}
BOOTS = "warm winter boots"
Start = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as server:
        yield server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[S3Server]:
    """A server that the test may stop or change."""
    with s3_server(tmp_path / "s3.log") as server:
        yield server


@pytest.fixture
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """The test's own bucket; this process and its children have the server's environment."""
    from s3fs import S3FileSystem

    own = "own_server" in request.fixturenames
    server: S3Server = request.getfixturevalue("own_server" if own else "shared_server")
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()  # of another server
    return Bucket(server, f"b{uuid4().hex}")


@pytest.fixture
def url(bucket: Bucket, tiny_bundle_folder: Path) -> str:
    return bucket.put(tiny_bundle_folder, "bundles/tiny")


@pytest.fixture
def serve_url(tmp_path: Path) -> Iterator[Start]:
    """`serve_url(URL, machine=NAME)` starts a service with the cache of this machine."""
    with ExitStack() as running:

        def start(url: str, *options: str, machine: str = "m", **how: Any) -> ServerProcess:
            folder = tmp_path / machine
            folder.mkdir(exist_ok=True)
            state = how.pop("state", folder / "state")
            options = (*options, "--cache", str(folder / "cache"))
            return running.enter_context(
                server_process(url, state, folder / "log", *options, **how)
            )

        yield start


def copies(server: ServerProcess) -> dict[str, Path]:
    """Return the folders of all copies in a server's cache by their names."""
    found = (server.log.parent / "cache").glob("*/*")
    return {path.name: path for path in found if len(path.parent.name) == 64}


def top(server: ServerProcess, query: str, version: int = 0) -> str:
    asked = {"queries": [query], "top_k": 1, "min_version": version}
    answer = server.client.post("/predict", json=asked).raise_for_status().json()
    return str(answer["results"][0]["keywords"][0]["id"])


def bundle_name(server: ServerProcess) -> str:
    return str(server.client.get("/info").json()["bundle"]["name"])


def reload(server: ServerProcess, place: str) -> Any:
    return server.client.post("/admin/reload", json={"bundle": place}, timeout=180)


def snapshot(server: ServerProcess, name: str) -> Any:
    return server.client.post("/admin/snapshot", json={"bundle": name}, timeout=180)


# Commands --------------------------------------------------------------------------------


@pytest.mark.slow
def test_commands_read_bundles_at_urls(bucket: Bucket, url: str, tmp_path: Path) -> None:
    (tmp_path / "queries.txt").write_text(f"{BOOTS}\n")
    cache = ("--cache", tmp_path / "cache")
    out = tmp_path / "answers.jsonl"
    asked = ("--input", tmp_path / "queries.txt", "--out", out)
    ended = run("service", "predict", "--bundle", url, *asked, *cache)
    assert ended.returncode == 0, ended.stderr
    assert '"id":"boots"' in out.read_text()
    before = len(bucket.requests("GET"))
    ended = run("service", "check", "--bundle", url, *cache)
    assert ended.returncode == 0, ended.stderr
    assert bucket.requests("GET")[before:] == ["bundles/tiny/manifest.json"]


def test_a_missing_bucket_or_bundle_is_named(
    bucket: Bucket, refused: Refused, tmp_path: Path
) -> None:
    cache = ("--cache", tmp_path / "cache")
    assert refused(app, "check", "--bundle", "s3://nowhere/x", *cache) == (
        "s3://nowhere/x/manifest.json: there is no such bucket"
    )
    x = f"{bucket.url}/x"
    assert refused(app, "check", "--bundle", x, *cache) == (
        f"{x}/manifest.json is missing: {x} is not a bundle"
    )


@pytest.mark.slow
def test_denied_access_and_missing_credentials_are_named_without_secrets(
    bucket: Bucket, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.deny("s3:GetObject")
    check = ("service", "check", "--bundle", url, "--cache", tmp_path / "cache")
    denied = run(*check)
    assert denied.returncode == 2
    said = f"error: {url}/manifest.json: the object store denies access "
    assert denied.stderr.startswith(said)
    assert len(denied.stderr.splitlines()) == 1
    assert SECRET not in denied.stderr + denied.stdout
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    without = run(*check)
    assert (without.returncode, len(without.stderr.splitlines())) == (2, 1)
    assert "there are no usable credentials for it (NoCredentialsError)" in without.stderr


@pytest.mark.slow
def test_a_store_that_is_down_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": SECRET}
    given["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
    for name, value in (NO_CREDENTIALS | given).items():
        monkeypatch.setenv(name, value)
    ended = run("service", "check", "--bundle", "s3://shop/x", "--cache", tmp_path)
    said = "the object store cannot be reached (EndpointConnectionError)"
    assert ended.stderr == f"error: s3://shop/x/manifest.json: {said}\n"
    assert ended.returncode == 2


@pytest.mark.slow
def test_a_snapshot_is_written_to_a_url(
    bucket: Bucket, url: str, serve_url: Start, tmp_path: Path, refused: Refused
) -> None:
    state = tmp_path / "state"
    server = serve_url(url, state=state)
    server.client.post("/labels", json=AXE).raise_for_status()
    cache, target = tmp_path / "cache", f"{bucket.url}/bundles/next"
    command = ("snapshot", "--bundle", url, "--state", state, "--out", target, "--cache", cache)
    (cache / "snapshots" / "unpushed").mkdir(parents=True)
    ended = run("service", *command)
    assert ended.returncode == 0, ended.stderr
    names = [*manifest.read(next(cache.glob("*/next"))).files, "manifest.json"]
    assert set(bucket.keys("bundles/next/")) == {f"bundles/next/{name}" for name in names}
    puts = [key for key in bucket.requests("PUT") if key.startswith("bundles/next/")]
    assert puts[-1] == "bundles/next/manifest.json"
    assert list((cache / "snapshots").glob("[!.]*")) == []
    assert refused(keymatch(), *command) == f"{target} exists already: name another URL"


# Services --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_restart_downloads_the_manifest_alone_and_survives_without_the_store(
    own_server: S3Server, bucket: Bucket, url: str, serve_url: Start
) -> None:
    server = serve_url(url)
    [fetched] = server.logged("bundle fetched")
    facts = manifest.read(copies(server)["tiny"])
    assert fetched["bytes"] == sum(file.bytes for file in facts.files.values())
    assert top(server, BOOTS) == "boots"
    assert server.stop() == 0
    before = len(bucket.requests("GET"))
    server = serve_url(url, "--workers", "2")
    assert top(server, BOOTS) == "boots"
    assert set(bucket.requests("GET")[before:]) == {"bundles/tiny/manifest.json"}
    assert server.stop() == 0
    own_server.stop()
    server = serve_url(url)
    assert top(server, BOOTS) == "boots"
    [warning] = server.logged("the object store cannot be reached; its last copy is used")
    assert warning["bundle"] == url
    detail = assert_problem(reload(server, "other"), 503)["detail"]
    assert "bundles/other/manifest.json: the object store cannot be reached" in detail
    assert top(server, BOOTS) == "boots"


@pytest.mark.slow
def test_a_snapshot_is_pushed_and_served_by_a_replica_on_another_machine(
    bucket: Bucket, url: str, serve_url: Start, postgres_url: str
) -> None:
    first = serve_url(url, machine="first", state=postgres_url)
    second = serve_url(url, "--workers", "2", machine="second", state=postgres_url)
    first.client.post("/labels", json=AXE).raise_for_status()
    assert snapshot(first, "next").json() == {"bundle": "next", "version": 1}
    puts = [key for key in bucket.requests("PUT") if key.startswith("bundles/next/")]
    assert puts[-1] == "bundles/next/manifest.json"
    assert "exists already" in assert_problem(snapshot(first, "next"), 422)["detail"]

    before = len(bucket.requests("GET"))
    answer = reload(first, f"{bucket.url}/bundles/next")
    assert answer.json() == {"bundle": "next", "version": 2}
    wait_for(lambda: len(second.logged("bundle reloaded")) == 2)  # both workers
    assert bundle_name(second) == "next"
    assert top(second, "ice axe", 2) == "axe"
    # The machine that wrote the snapshot has a copy. One worker of the other machine fetches it.
    files = manifest.read(copies(second)["next"]).files
    fetched = [key for key in bucket.requests("GET")[before:] if "manifest.json" not in key]
    assert sorted(fetched) == sorted(f"bundles/next/{name}" for name in files)

    assert second.stop() == 0
    second = serve_url(url, machine="second", state=postgres_url)  # a restart serves it, too
    assert bundle_name(second) == "next"
    assert second.logged("bundle fetched") == []


@pytest.mark.slow
def test_a_reload_opens_bundles_directly_below_the_prefix_alone(
    bucket: Bucket, url: str, serve_url: Start, tiny_bundle_folder: Path
) -> None:
    for prefix in ("elsewhere/secret", "bundles/team/x", "bundles-other/x"):
        bucket.put(tiny_bundle_folder, prefix)
    server, top_url = serve_url(url), bucket.url
    for place in (
        f"{top_url}/elsewhere/secret", f"{top_url}/bundles/../elsewhere/secret",
        f"{top_url}/bundles/team/x", f"{top_url}/bundles-other/x", f"{top_url}/bundles/",
        f"{top_url}/bundles/%2e%2e", "gs://shop/x", "file:///etc", "http://127.0.0.1/x",
        "../elsewhere/secret",
    ):  # fmt: skip
        assert_problem(reload(server, place), 422, field="bundle")
    detail = assert_problem(reload(server, "gone"), 422)["detail"]
    assert detail == "there is no bundle named 'gone'; there are: tiny"
    assert {key.split("/")[1] for key in bucket.requests("GET")} == {"tiny", "gone", "team"}
    assert top(server, BOOTS) == "boots"


@pytest.mark.slow
def test_failed_reloads_and_pushes_keep_the_old_bundle_and_leave_nothing_half(
    bucket: Bucket, url: str, serve_url: Start, tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    bucket.put(tiny_bundle_folder, "bundles/bad")
    bucket.write("bundles/bad/keys.npy", b"other")
    half = Path(shutil.copytree(tiny_bundle_folder, tmp_path / "half"))
    (half / "labels/texts.bin").unlink()
    bucket.put(half, "bundles/half")
    server = serve_url(url)
    for name, title, said in (
        ("bad", "Bundle refused", "bad/keys.npy has 5 bytes instead of"),
        ("half", "Bundle missing", "half/labels/texts.bin is missing"),
    ):
        assert assert_problem(reload(server, name), 422)["title"] == title
        assert said in wait_for(lambda title=title: server.logged(title))[0]["cause"]
    bucket.remove()
    no_bucket = "manifest.json: there is no such bucket"
    assert assert_problem(reload(server, "bad"), 503)["detail"].endswith(f"/bad/{no_bucket}")
    detail = assert_problem(snapshot(server, "next"), 503)["detail"]
    assert detail == f"{bucket.url}/bundles/next/{no_bucket}"
    assert copies(server).keys() == {"tiny"}
    assert not list((server.log.parent / "cache").rglob("*.partial-*"))
    assert top(server, BOOTS) == "boots"
    assert server.client.get("/health/ready").status_code == 200
    assert SECRET not in server.log.read_text()


@pytest.mark.slow
def test_a_push_that_is_denied_is_named_and_leaves_nothing(
    bucket: Bucket, url: str, serve_url: Start
) -> None:
    server = serve_url(url)
    bucket.deny("s3:PutObject")  # reading is allowed, so the child process finds it out
    detail = assert_problem(snapshot(server, "next"), 503)["detail"]
    assert detail.startswith(f"{bucket.url}/bundles/next/")
    assert "the object store denies access" in detail
    assert list((server.log.parent / "cache" / "snapshots").glob("*")) == []
    assert bucket.keys("bundles/next/") == []


@pytest.mark.slow
def test_a_service_does_not_start_without_its_bundle(
    bucket: Bucket, url: str, tmp_path: Path
) -> None:
    bucket.write("bundles/tiny/keys.npy", b"other")
    state, cache = tmp_path / "state", tmp_path / "cache"
    command = ("service", "serve", "--bundle", url, "--port", "0")
    ended = run(*command, "--state", state, "--cache", cache)
    assert ended.returncode == 2
    said = f"error: {url}/keys.npy has 5 bytes instead of"
    assert ended.stderr.splitlines()[-1].startswith(said)
    assert not state.exists()
