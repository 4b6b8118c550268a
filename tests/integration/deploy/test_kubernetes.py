"""The Kubernetes overlays, rendered by `kubectl kustomize`: valid, with settings that exist."""

import http.server
import inspect
import re
import shlex
import subprocess
import sys
import tarfile
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from service import settings as settings_module
from service.cli.serve import serve
from service.command_line import STATE_VARIABLE
from service.core.bundle import manifest as bundle_manifest
from service.server.worker import MARGIN_SECONDS
from service.settings import API_KEYS_VARIABLE, EngineSettings, Settings, load_settings
from service.telemetry import STAGES, Telemetry
from tests.support.commands import program
from tests.support.memory_budget import budget, bytes_of

ROOT = Path(__file__).parents[3]
KUBERNETES = ROOT / "deploy/kubernetes"
BASE = KUBERNETES / "base"
OVERLAYS = sorted(path.parent.name for path in KUBERNETES.glob("*/kustomization.yaml"))
OVERLAYS.remove(BASE.name)
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
NAME = {"app.kubernetes.io/name": "keymatch"}
overlays = pytest.mark.parametrize("overlay", OVERLAYS)


@cache
def manifests(overlay: str) -> list[Any]:
    """Render an overlay, without a cluster."""
    command = [program("kubectl", package="kubectl"), "kustomize", str(KUBERNETES / overlay)]
    rendered = subprocess.run(command, capture_output=True, text=True)
    assert rendered.returncode == 0, rendered.stderr
    return list(yaml.safe_load_all(rendered.stdout))


def manifest(overlay: str, kind: str) -> Any:
    [found] = [one for one in manifests(overlay) if one["kind"] == kind]
    return found


def pod(overlay: str) -> Any:
    return manifest(overlay, "Deployment")["spec"]["template"]["spec"]


def container(overlay: str) -> Any:
    [found] = pod(overlay)["containers"]
    return found


def secrets_named(value: Any) -> Iterator[tuple[str, str | None]]:
    """Yield each secret that a manifest reads, with the key if it names one."""
    if isinstance(value, list):
        for one in value:
            yield from secrets_named(one)
    if isinstance(value, dict):
        if "secretKeyRef" in value:
            yield value["secretKeyRef"]["name"], value["secretKeyRef"]["key"]
        if "secretName" in value:
            yield value["secretName"], None
        for one in value.values():
            yield from secrets_named(one)


# The manifests --------------------------------------------------------------------------------


@overlays
def test_manifests_are_valid(overlay: str) -> None:
    for one in manifests(overlay):
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("folder", [BASE.name, *OVERLAYS])
def test_the_kustomization_lists_every_file(folder: str) -> None:
    document = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())
    listed = {one for one in document["resources"] if one != "../base"}
    listed |= {patch["path"] for patch in document.get("patches", [])}
    listed |= {file for one in document.get("configMapGenerator", []) for file in one["files"]}
    names = {path.name for path in (KUBERNETES / folder).iterdir()}
    assert listed == names - {"kustomization.yaml"}


@overlays
def test_the_containers_have_no_privileges_and_the_projects_version(overlay: str) -> None:
    user = re.search(r"^USER (\d+):", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert user is not None
    assert pod(overlay)["securityContext"]["runAsNonRoot"]
    assert pod(overlay)["securityContext"]["runAsUser"] == int(user[1])
    for one in (*pod(overlay).get("initContainers", []), *pod(overlay)["containers"]):
        assert one["securityContext"] == RESTRICTED
        assert one["image"] == f"keymatch:{version}"


@overlays
def test_every_volume_mount_claim_and_selector_has_its_counterpart(overlay: str) -> None:
    volumes = {volume["name"] for volume in pod(overlay)["volumes"]}
    assert {mount["name"] for mount in container(overlay)["volumeMounts"]} == volumes
    for one in pod(overlay).get("initContainers", []):
        assert {mount["name"] for mount in one["volumeMounts"]} <= volumes
    kind = "PersistentVolumeClaim"
    claims = {one["metadata"]["name"] for one in manifests(overlay) if one["kind"] == kind}
    claimed = [volume.get("persistentVolumeClaim") for volume in pod(overlay)["volumes"]]
    assert {claim["claimName"] for claim in claimed if claim} == claims
    template = manifest(overlay, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert manifest(overlay, "Service")["spec"]["selector"].items() <= template.items()


@overlays
def test_the_head_of_the_overlay_makes_every_secret_that_the_pod_reads(overlay: str) -> None:
    head = (KUBERNETES / overlay / "kustomization.yaml").read_text().replace("\\\n#", "")
    made = set()
    for line in re.findall(r"^# +(kubectl create secret .+)$", head, re.MULTILINE):
        *_, name = words = [word for word in shlex.split(line) if not word.startswith("--")]
        assert words[:-1] == ["kubectl", "create", "secret", "generic"]
        keys = re.findall(r"--from-\w+=([\w-]+)=", line)
        made |= {(name, key) for key in keys} | {(name, None)}
    assert set(secrets_named(pod(overlay))) <= made
    assert f"kubectl apply -k deploy/kubernetes/{overlay}\n" in head


# The service's arguments, settings and routes --------------------------------------------------


@overlays
def test_the_arguments_and_variables_exist(overlay: str) -> None:
    command, *options = container(overlay)["args"]
    assert command == "serve"
    names = {option.partition("=")[0].removeprefix("--") for option in options}
    assert names <= inspect.signature(serve).parameters.keys()
    variables = {one["name"] for one in container(overlay)["env"]}
    assert variables == {STATE_VARIABLE, API_KEYS_VARIABLE}


@pytest.fixture
def settings(overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of the pod, loaded on as many cores as it may use."""
    path = tmp_path / "keymatch.toml"
    path.write_text(manifest(overlay, "ConfigMap")["data"]["keymatch.toml"])
    cores = int(container(overlay)["resources"]["limits"]["cpu"])
    monkeypatch.setattr(settings_module, "available_cores", lambda: cores)
    loaded = load_settings(path, {})
    assert (loaded.server.workers, loaded.engine.threads) == (cores, 1)
    return loaded


@overlays
def test_the_pod_has_the_port_and_the_time_to_end_of_its_settings(
    overlay: str, settings: Settings
) -> None:
    assert settings.server.port == container(overlay)["ports"][0]["containerPort"]
    ends = settings.server.leave_seconds + settings.server.shutdown_seconds + MARGIN_SECONDS
    assert pod(overlay)["terminationGracePeriodSeconds"] > ends


@overlays
def test_what_the_service_writes_is_on_volumes_that_it_may_write_to(
    overlay: str, settings: Settings
) -> None:
    mounts = {one["mountPath"]: one for one in container(overlay)["volumeMounts"]}
    [state] = [one for one in container(overlay)["env"] if one["name"] == STATE_VARIABLE]
    # Without the setting, segments are next to an SQLite log.
    segments = settings.engine.segments or state["value"]
    assert {"--bundle=/bundle", "--bundles=/bundles"} <= set(container(overlay)["args"])
    for folder in ("/bundles", str(segments)):
        assert not mounts[folder].get("readOnly")


@overlays
def test_the_probes_call_routes_that_exist(overlay: str) -> None:
    routes = "".join(path.read_text() for path in (ROOT / "service/http/routes").glob("*.py"))
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert f'"GET {container(overlay)[probe]["httpGet"]["path"]}"' in routes


@overlays
def test_the_pod_holds_all_that_its_settings_allow(overlay: str, settings: Settings) -> None:
    limit = bytes_of(container(overlay)["resources"]["limits"]["memory"])
    folders = [volume.get("emptyDir", {}) for volume in pod(overlay)["volumes"]]
    [tmp] = [bytes_of(one["sizeLimit"]) for one in folders if one.get("medium") == "Memory"]
    assert settings.server.memory_bytes == limit - tmp
    decided, used = budget(settings)
    assert used + tmp <= limit
    assert decided.engine.live_bytes is not None
    assert decided.engine.live_bytes > 10**9


# One box, and replicas ------------------------------------------------------------------------


def test_one_box_is_one_pod_that_is_stopped_before_the_next_one_starts() -> None:
    specification = manifest("one-box", "Deployment")["spec"]
    assert specification["replicas"] == 1
    assert specification["strategy"] == {"type": "Recreate"}


def test_replicas_are_never_fewer_during_an_update_and_share_their_snapshots() -> None:
    specification = manifest("replicas", "Deployment")["spec"]
    assert "replicas" not in specification  # else each `kubectl apply` would undo the autoscaler
    assert specification["strategy"]["type"] == "RollingUpdate"
    assert specification["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert manifest("replicas", "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteMany"]
    text = manifest("replicas", "ConfigMap")["data"]["keymatch.toml"]
    assert tomllib.loads(text)["server"]["leave_seconds"] > 0
    [state] = [one for one in container("replicas")["env"] if one["name"] == STATE_VARIABLE]
    assert "secretKeyRef" in state["valueFrom"]  # a URL may hold a password


def test_the_budget_the_autoscaler_and_the_spread_mean_these_pods() -> None:
    scaler = manifest("replicas", "HorizontalPodAutoscaler")["spec"]
    disruption = manifest("replicas", "PodDisruptionBudget")["spec"]
    deployment = manifest("replicas", "Deployment")
    assert deployment["spec"]["template"]["metadata"]["labels"].items() >= NAME.items()
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert 0 < disruption["maxUnavailable"] < scaler["minReplicas"] < scaler["maxReplicas"]
    spread = pod("replicas")["topologySpreadConstraints"]
    for selector in (disruption["selector"], *(one["labelSelector"] for one in spread)):
        assert selector == {"matchLabels": NAME}


def test_the_autoscaler_reads_the_cpu_and_a_metric_made_of_exported_ones() -> None:
    cpu, queue = manifest("replicas", "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert cpu["resource"]["name"] in container("replicas")["resources"]["requests"]
    [rule] = yaml.safe_load((ROOT / "deploy/prometheus/adapter.yml").read_text())["rules"]
    assert queue["pods"]["metric"]["name"] == rule["name"]["as"]
    target = float(queue["pods"]["target"]["averageValue"])
    assert 0 < target < EngineSettings().queue_target_ms
    exported = {family.name for family in Telemetry().registry.collect()}
    query = rule["seriesQuery"] + rule["metricsQuery"]
    for name in re.findall(r"\bkeymatch_\w+", query):
        assert name.removesuffix("_sum").removesuffix("_count") in exported
    assert set(re.findall(r'stage="(\w+)"', query)) <= set(STAGES)


@pytest.fixture
def archive(tiny_bundle_folder: Path, tmp_path: Path) -> Path:
    """A bundle's archive, as the head of the overlay writes it."""
    path = tmp_path / "bundle.tar"
    subprocess.run(["tar", "-C", tiny_bundle_folder, "-cf", path, "."], check=True)
    return path


@contextmanager
def web_server(folder: Path, *, missing: int = 0) -> Iterator[str]:
    """Serve a folder and yield the address; with `missing`, answers end that many bytes early."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def send_header(self, name: str, value: str) -> None:
            more = missing if name == "Content-Length" else 0
            super().send_header(name, str(int(value) + more) if more else value)

    handler = partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fetched(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the program of the init container, with another folder instead of /bundle."""
    [first] = pod("replicas")["initContainers"]
    python, option = first["command"]
    [text] = first["args"]
    assert (python, option, text.count('"/bundle"')) == ("python", "-c", 1)
    variables = {one["name"]: one.get("value") for one in first["env"]}
    assert variables == {"TMPDIR": "/bundle", "BUNDLE_URL": None}
    folder.mkdir()
    return subprocess.run(
        [sys.executable, option, text.replace('"/bundle"', repr(str(folder)))],
        env={"TMPDIR": str(folder), "BUNDLE_URL": url},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("place", ["server", "volume"])
def test_the_init_container_fetches_a_bundle(
    archive: Path, tiny_bundle_folder: Path, tmp_path: Path, place: str
) -> None:
    with web_server(archive.parent) as address:
        url = f"{address}/{archive.name}" if place == "server" else archive.as_uri()
        ended = fetched(url, tmp_path / "bundle")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert bundle_manifest.read(tmp_path / "bundle").name == "tiny"
    names = [path.name for path in (tmp_path / "bundle").iterdir()]
    assert sorted(names) == sorted(path.name for path in tiny_bundle_folder.iterdir())
    assert archive.exists()


def test_the_init_container_says_in_a_sentence_why_it_fetches_nothing(
    archive: Path, tmp_path: Path
) -> None:
    (tmp_path / "no archive").write_bytes(b"no archive")
    outside = tmp_path / "outside.tar"
    with tarfile.open(outside, "w") as written:
        written.add(archive, "../outside")
    wrong = [tmp_path / "no archive", tmp_path / "nothing", outside]
    with web_server(tmp_path, missing=10) as cut, web_server(tmp_path) as address:
        urls = [
            *(f"{cut}/{archive.name}", f"{address}/nothing", *(path.as_uri() for path in wrong)),
            *("bundle.tar", "s3://bucket/bundle.tar"),
        ]
        for number, url in enumerate(urls):
            ended = fetched(url, tmp_path / str(number))
            assert ended.returncode == 1, url
            [line] = ended.stderr.splitlines()
            assert line.startswith("the bundle cannot be fetched: ")
