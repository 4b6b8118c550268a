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
from packaging.requirements import Requirement

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
TAGS = {"shards": "-cluster"}  # of an image with more extras
RAY_TOKEN = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}
overlays = pytest.mark.parametrize("overlay", OVERLAYS)
replicated = pytest.mark.parametrize("overlay", ["replicas", "shards"])


@cache
def manifests(overlay: str) -> list[Any]:
    """Render an overlay, without a cluster."""
    command = [program("kubectl", package="kubectl"), "kustomize", str(KUBERNETES / overlay)]
    rendered = subprocess.run(command, capture_output=True, text=True)
    assert rendered.returncode == 0, rendered.stderr
    return list(yaml.safe_load_all(rendered.stdout))


def manifest(overlay: str, kind: str, name: str | None = None) -> Any:
    [found] = [
        one
        for one in manifests(overlay)
        if one["kind"] == kind and name in (None, one["metadata"]["name"])
    ]
    return found


def pod(overlay: str) -> Any:
    return manifest(overlay, "Deployment")["spec"]["template"]["spec"]


def container(overlay: str) -> Any:
    [found] = pod(overlay)["containers"]
    return found


def ray_pods() -> tuple[Any, Any]:
    """Return the pods of the Ray cluster: the head, and those that hold shards."""
    cluster = manifest("shards", "RayCluster")["spec"]
    [workers] = cluster["workerGroupSpecs"]
    return cluster["headGroupSpec"]["template"]["spec"], workers["template"]["spec"]


def all_pods(overlay: str) -> list[Any]:
    return [pod(overlay), *(ray_pods() if overlay == "shards" else ())]


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
        if one["kind"] != "RayCluster":  # not a kind of Kubernetes itself
            kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    for one in all_pods(overlay):
        alone = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone"}, "spec": one}
        kubernetes_validate.validate(alone, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("folder", [BASE.name, *OVERLAYS])
def test_the_kustomization_lists_every_file(folder: str) -> None:
    document = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())
    listed = {one for one in document["resources"] if not one.startswith("../")}
    listed |= {patch["path"] for patch in document.get("patches", [])}
    listed |= {file for one in document.get("configMapGenerator", []) for file in one["files"]}
    names = {path.name for path in (KUBERNETES / folder).iterdir()}
    assert listed == names - {"kustomization.yaml"}


@overlays
def test_the_containers_have_no_privileges_and_the_projects_version(overlay: str) -> None:
    user = re.search(r"^USER (\d+):", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert user is not None
    for each in all_pods(overlay):
        assert each["securityContext"]["runAsNonRoot"]
        assert each["securityContext"]["runAsUser"] == int(user[1])
        assert not each["automountServiceAccountToken"]
        for one in (*each.get("initContainers", []), *each["containers"]):
            assert one["securityContext"] == RESTRICTED
            assert one["image"] == f"keymatch:{version}{TAGS.get(overlay, '')}"


@overlays
def test_every_volume_mount_claim_and_selector_has_its_counterpart(overlay: str) -> None:
    for each in all_pods(overlay):
        volumes = {volume["name"] for volume in each["volumes"]}
        [only] = each["containers"]
        assert {mount["name"] for mount in only["volumeMounts"]} == volumes
        for one in each.get("initContainers", []):
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
    assert set(secrets_named(all_pods(overlay))) <= made
    assert f"kubectl apply -k deploy/kubernetes/{overlay}\n" in head


# The service's arguments, settings and routes --------------------------------------------------


@overlays
def test_the_arguments_and_variables_exist(overlay: str) -> None:
    command, *options = container(overlay)["args"]
    assert command == "serve"
    names = {option.partition("=")[0].removeprefix("--") for option in options}
    assert names <= inspect.signature(serve).parameters.keys()
    variables = {one["name"] for one in container(overlay)["env"]}
    ours = {STATE_VARIABLE, API_KEYS_VARIABLE}
    assert variables == (ours | RAY_TOKEN if overlay == "shards" else ours)


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
    routes = "".join(path.read_text() for path in (ROOT / "service/http").glob("*.py"))
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


@replicated
def test_replicas_are_never_fewer_during_an_update_and_share_their_snapshots(overlay: str) -> None:
    specification = manifest(overlay, "Deployment")["spec"]
    assert "replicas" not in specification  # else each `kubectl apply` would undo the autoscaler
    assert specification["strategy"]["type"] == "RollingUpdate"
    assert specification["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert manifest(overlay, "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteMany"]
    text = manifest(overlay, "ConfigMap")["data"]["keymatch.toml"]
    assert tomllib.loads(text)["server"]["leave_seconds"] > 0
    [state] = [one for one in container(overlay)["env"] if one["name"] == STATE_VARIABLE]
    assert "secretKeyRef" in state["valueFrom"]  # a URL may hold a password


@replicated
def test_the_budget_the_autoscaler_and_the_spread_mean_these_pods(overlay: str) -> None:
    scaler = manifest(overlay, "HorizontalPodAutoscaler")["spec"]
    disruption = manifest(overlay, "PodDisruptionBudget", "keymatch")["spec"]
    deployment = manifest(overlay, "Deployment")
    assert deployment["spec"]["template"]["metadata"]["labels"].items() >= NAME.items()
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert 0 < disruption["maxUnavailable"] < scaler["minReplicas"] < scaler["maxReplicas"]
    spread = pod(overlay)["topologySpreadConstraints"]
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


# Shards ---------------------------------------------------------------------------------------


def option_of(name: str) -> str:
    """Return the value of an option of the front."""
    [value] = [
        value
        for option, _, value in (one.partition("=") for one in container("shards")["args"])
        if option == f"--{name}"
    ]
    return str(value)


def sidecar() -> Any:
    [found] = [one for one in pod("shards")["initContainers"] if one["name"] == "ray"]
    return found


def environment(of: Any) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in of["env"]}


def mounted(of: Any, each: Any) -> dict[str, Any]:
    """Map the paths of a container to its pod's volumes."""
    volumes = {one["name"]: one for one in each["volumes"]}
    return {one["mountPath"]: volumes[one["name"]] for one in of["volumeMounts"]}


def test_shards_find_the_bundles_at_the_paths_of_the_fronts() -> None:
    """A front tells a shard the path of the bundle, and where it may write segments."""
    front, (_, workers) = pod("shards"), ray_pods()
    here, there = mounted(container("shards"), front), mounted(workers["containers"][0], workers)
    assert here["/bundles"] == there["/bundles"]
    assert here["/bundle"] == there["/bundle"]
    assert {"/bundles", "/bundle", "/segments", "/tmp"} == there.keys()
    fetches = [
        [one for one in each["initContainers"] if one["name"] == "bundle"]
        for each in (front, workers)
    ]
    assert fetches[0] == fetches[1] != []


def test_fronts_head_and_shards_are_one_ray_cluster_with_one_token() -> None:
    cluster, (head, workers) = manifest("shards", "RayCluster"), ray_pods()
    # KubeRay names the head's Service so.
    address = f"{cluster['metadata']['name']}-head-svc:6379"
    assert option_of("cluster") == address
    assert f"--address={address}" in sidecar()["args"]
    tokens = [
        {name: environment(one)[name] for name in RAY_TOKEN}
        for one in (container("shards"), sidecar(), head["containers"][0], workers["containers"][0])
    ]
    assert all(token == tokens[0] for token in tokens)
    assert tokens[0]["RAY_AUTH_MODE"] == "token"


def test_a_front_sees_the_ray_node_of_its_pod() -> None:
    """Ray looks for the node among the processes, and opens its sockets in its folder."""
    front = pod("shards")
    assert front["shareProcessNamespace"]
    assert sidecar()["restartPolicy"] == "Always"
    folders = [mounted(one, front)["/tmp/ray"] for one in (container("shards"), sidecar())]
    assert folders[0] == folders[1]


def test_only_the_pods_for_shards_offer_cores_to_ray() -> None:
    cluster = manifest("shards", "RayCluster")["spec"]
    [workers] = cluster["workerGroupSpecs"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert "--num-cpus=0" in sidecar()["args"]
    limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert workers["rayStartParams"]["num-cpus"] == limits["cpu"]


def test_ray_has_the_version_the_options_and_the_probe_that_are_named() -> None:
    scripts = pytest.importorskip("ray.scripts.scripts")
    constants = pytest.importorskip("ray._private.ray_constants")
    cluster, (head, workers) = manifest("shards", "RayCluster")["spec"], ray_pods()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    [ray] = extras["cluster"]
    assert Requirement(ray).specifier.contains(cluster["rayVersion"])
    names = {one.partition("=")[0].removeprefix("--") for one in sidecar()["args"]}
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        names |= group["rayStartParams"].keys()
    known = {option.removeprefix("--") for one in scripts.start.params for option in one.opts}
    assert names <= known
    source = Path(scripts.__file__).parents[1] / "dashboard/modules/reporter/healthz_agent.py"
    for one in (sidecar(), head["containers"][0], workers["containers"][0]):
        asked = one["livenessProbe"]["httpGet"]
        assert asked["port"] == constants.DEFAULT_DASHBOARD_AGENT_LISTEN_PORT
        assert f'"{asked["path"]}"' in source.read_text()


def test_a_disruption_leaves_a_replica_of_each_shard() -> None:
    [workers] = manifest("shards", "RayCluster")["spec"]["workerGroupSpecs"]
    disruption = manifest("shards", "PodDisruptionBudget", "keymatch-shards")["spec"]
    pods, replicas = workers["replicas"], int(option_of("replicas"))
    assert workers["minReplicas"] == workers["maxReplicas"] == pods > replicas
    assert pods - disruption["minAvailable"] < replicas
    labels = {"ray.io/cluster": "keymatch", "ray.io/node-type": "worker"}  # by KubeRay
    assert manifest("shards", "RayCluster")["metadata"]["name"] == labels["ray.io/cluster"]
    _, shards = ray_pods()
    host, _ = shards["topologySpreadConstraints"]
    assert host["whenUnsatisfiable"] == "DoNotSchedule"
    for selector in (
        disruption["selector"],
        *(one["labelSelector"] for one in shards["topologySpreadConstraints"]),
    ):
        assert selector == {"matchLabels": labels}


def test_only_pods_of_keymatch_reach_shards_and_ray() -> None:
    ours = [{"podSelector": {"matchLabels": one}} for one in ({"ray.io/cluster": "keymatch"}, NAME)]
    shards = manifest("shards", "NetworkPolicy", "keymatch-shards")["spec"]
    assert [shards["podSelector"]] == [ours[0]["podSelector"]]
    assert shards["ingress"] == [{"from": ours}]
    fronts = manifest("shards", "NetworkPolicy", "keymatch")["spec"]
    assert fronts["podSelector"] == ours[1]["podSelector"]
    http, between = fronts["ingress"]
    assert http == {"ports": [{"port": container("shards")["ports"][0]["name"]}]}
    assert between == {"from": ours}
