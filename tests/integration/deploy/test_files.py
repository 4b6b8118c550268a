"""The deployment files: image, compose file, dashboard and Kubernetes manifests."""

import json
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from service import settings as settings_module
from service.settings import load_settings
from service.telemetry import REJECTIONS, Telemetry

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/keymatch.json").read_text())
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
MANIFESTS = [
    document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    if path.name != "kustomization.yaml"
    for document in yaml.safe_load_all(path.read_text())
]
DEPLOYMENT = next(manifest for manifest in MANIFESTS if manifest["kind"] == "Deployment")
(CONTAINER,) = DEPLOYMENT["spec"]["template"]["spec"]["containers"]


def exported_names() -> dict[str, str]:
    """Map the name of every sample that /metrics can contain to the name of its metric."""
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
    return {
        family.name + suffix: family.name
        for family in Telemetry().registry.collect()
        for suffix in suffixes[family.type]
    }


def dashboard_expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def alert_expressions() -> list[str]:
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def used_names(expressions: list[str]) -> set[str]:
    return {name for text in expressions for name in re.findall(r"\bkeymatch_\w+", text)}


# Metrics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("expressions", [dashboard_expressions, alert_expressions])
def test_dashboard_and_alerts_use_only_exported_metrics(expressions: Any) -> None:
    used = used_names(expressions())
    assert used
    assert used <= set(exported_names())


def test_the_dashboard_shows_every_metric() -> None:
    metric = exported_names()
    shown = {metric[name] for name in used_names(dashboard_expressions())}
    assert shown == set(metric.values())


def test_dashboard_and_alerts_use_only_known_rejection_reasons() -> None:
    text = " ".join(dashboard_expressions() + alert_expressions())
    assert set(re.findall(r'reason="(\w+)"', text)) <= set(REJECTIONS)


# Grafana --------------------------------------------------------------------------------------


def test_every_panel_reads_the_provisioned_data_source() -> None:
    provisioned = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )
    (source,) = provisioned["datasources"]
    for panel in DASHBOARD["panels"]:
        for reader in (panel, *panel["targets"]):
            assert reader["datasource"] == {"type": source["type"], "uid": source["uid"]}


def test_panels_have_different_names_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["title"] for panel in panels}) == len(panels)
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells


def test_the_dashboard_is_mounted_where_grafana_looks() -> None:
    providers = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/dashboards/keymatch.yml").read_text()
    )
    (provider,) = providers["providers"]
    mounts = dict(mount.split(":")[:2] for mount in COMPOSE["services"]["grafana"]["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]


# Compose --------------------------------------------------------------------------------------


def test_ports_images_and_mounts_of_the_compose_file() -> None:
    """Ports are published on loopback only, images are pinned, and mounted files exist."""
    ports = [port for service in COMPOSE["services"].values() for port in service["ports"]]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert COMPOSE["services"]["service"]["image"] == f"keymatch:{version}"
    for service in COMPOSE["services"].values():
        _, _, tag = service["image"].rpartition(":")
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag), service["image"]
        for mount in service["volumes"]:
            if isinstance(mount, dict):
                continue
            source = mount.split(":")[0]
            assert (ROOT / source).exists() if source[0] == "." else source in COMPOSE["volumes"]


def test_prometheus_scrapes_the_service_of_the_compose_file() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "keymatch"
    (target,) = job["static_configs"][0]["targets"]
    name, port = target.split(":")
    assert name in COMPOSE["services"]
    assert f"--port={port}" in COMPOSE["services"][name]["command"]


def test_snapshots_have_a_folder_that_the_service_may_write_to() -> None:
    """Compose, Kubernetes and the image name the same folder, and the image's user owns it."""
    command = COMPOSE["services"]["service"]["command"]
    mounts = [
        mount for mount in COMPOSE["services"]["service"]["volumes"] if isinstance(mount, str)
    ]
    assert "bundles:/bundles" in mounts
    assert "bundles" in COMPOSE["volumes"]
    pod = {mount["mountPath"]: mount for mount in CONTAINER["volumeMounts"]}
    assert not pod["/bundles"].get("readOnly")
    final = (ROOT / "Dockerfile").read_text().rsplit("FROM ", 1)[1].replace("\\\n", "")
    image = json.loads(re.search(r"^CMD (.*)$", final, re.MULTILINE)[1])  # type: ignore[index]
    assert "/bundles" in json.loads(re.search(r"^VOLUME (.*)$", final, re.MULTILINE)[1])  # type: ignore[index]
    assert re.search(r"install -d -o (\d+) -g \1 /bundles /state", final)
    for arguments in (command, CONTAINER["args"], [f"{a}={b}" for a, b in pairwise(image)]):
        assert {"--bundle=/bundle", "--bundles=/bundles"} <= set(arguments)


# Image ----------------------------------------------------------------------------------------


def test_hadolint_accepts_the_dockerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


def test_the_builder_gets_every_file_that_the_dockerfile_copies() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE)
    copied = {source for sources in copies for source in sources.split()}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}


def test_the_image_has_a_numeric_user_and_requires_api_keys_by_default() -> None:
    final = (ROOT / "Dockerfile").read_text().rsplit("FROM ", 1)[1]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", final, re.MULTILINE)
    text = final.replace("\\\n", "")
    command = json.loads(re.search(r"^CMD (.*)$", text, re.MULTILINE)[1])  # type: ignore[index]
    assert command[0] == "serve"
    assert "0.0.0.0" in command
    assert "--allow-anonymous" not in command


def test_the_health_check_is_valid_python() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    check = re.search(r"HEALTHCHECK .*CMD (\[.*\])", text)
    assert check is not None
    python, option, program = json.loads(check[1])
    assert (python, option) == ("python", "-c")
    compile(program, "HEALTHCHECK", "exec")
    assert "/health/ready" in program


# Kubernetes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest["kind"])
def test_manifests_are_valid(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_kustomization_lists_every_manifest() -> None:
    folder = DEPLOY / "kubernetes"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(
        path.name for path in folder.glob("*.yaml") if path.name != "kustomization.yaml"
    )


def test_there_is_never_more_than_one_pod() -> None:
    assert DEPLOYMENT["spec"]["replicas"] == 1
    assert DEPLOYMENT["spec"]["strategy"]["type"] == "Recreate"


def test_the_pod_has_no_privileges() -> None:
    pod = DEPLOYMENT["spec"]["template"]["spec"]["securityContext"]
    user = re.search(r"^USER (\d+):", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    assert pod["runAsNonRoot"]
    assert pod["runAsUser"] == int(user[1])
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_every_volume_mount_claim_and_selector_has_its_counterpart() -> None:
    pod = DEPLOYMENT["spec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == volumes
    claims = {
        manifest["metadata"]["name"]
        for manifest in MANIFESTS
        if manifest["kind"] == "PersistentVolumeClaim"
    }
    claimed = [volume.get("persistentVolumeClaim") for volume in pod["volumes"]]
    assert {claim["claimName"] for claim in claimed if claim} == claims
    service = next(manifest for manifest in MANIFESTS if manifest["kind"] == "Service")
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_the_settings_of_the_pod_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = next(manifest for manifest in MANIFESTS if manifest["kind"] == "ConfigMap")
    path = tmp_path / "keymatch.toml"
    path.write_text(config["data"]["keymatch.toml"])
    cores = int(CONTAINER["resources"]["limits"]["cpu"])
    monkeypatch.setattr(settings_module, "available_cores", lambda: cores)
    settings = load_settings(path, {})
    assert (settings.server.workers, settings.engine.threads) == (cores, 1)
    assert settings.server.port == CONTAINER["ports"][0]["containerPort"]
    grace = DEPLOYMENT["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > settings.server.shutdown_seconds


def test_the_probes_call_routes_that_exist() -> None:
    routes = "".join(path.read_text() for path in (ROOT / "service/http/routes").glob("*.py"))
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert f'"{CONTAINER[probe]["httpGet"]["path"]}"' in routes
