"""The deployment files: image, compose file, proxy and dashboard."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from service.command_line import STATE_VARIABLE
from service.settings import EngineSettings, Limits, ServerSettings, Settings
from service.telemetry import REJECTIONS, Telemetry
from tests.support.memory_budget import budget, bytes_of

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/keymatch.json").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
REPLICAS = ["replica-1", "replica-2", "replica-3"]
FINAL = DOCKERFILE.rsplit("FROM ", 1)[1]  # the image's last stage
PROXY = DEPLOY / "proxy/nginx.conf"
DIRECTIVES = re.sub(r"#.*", "", PROXY.read_text())


def exported_names() -> dict[str, str]:
    """Map the name of every sample that /metrics can contain to the name of its metric."""
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
    return {
        family.name + suffix: family.name
        for family in Telemetry().registry.collect()
        for suffix in suffixes[family.type]
    }


def document(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


# Metrics --------------------------------------------------------------------------------------


def test_dashboard_and_alerts_use_exported_metrics_and_known_reasons() -> None:
    metric, groups = exported_names(), document("prometheus/alerts.yml")["groups"]
    shown = " ".join(one["expr"] for panel in DASHBOARD["panels"] for one in panel["targets"])
    watched = " ".join(rule["expr"] for group in groups for rule in group["rules"])
    # The dashboard shows every metric.
    names = re.findall(r"\bkeymatch_\w+", shown)
    assert {metric[name] for name in names} == set(metric.values())
    assert set(re.findall(r"\bkeymatch_\w+", watched)) <= set(metric)
    assert set(re.findall(r'reason="(\w+)"', shown + watched)) <= set(REJECTIONS)


# Grafana --------------------------------------------------------------------------------------


def test_the_dashboard_and_its_data_source_are_where_grafana_looks() -> None:
    [provider] = document("grafana/provisioning/dashboards/keymatch.yml")["providers"]
    mounts = dict(mount.split(":")[:2] for mount in COMPOSE["services"]["grafana"]["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    [source] = document("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    for panel in DASHBOARD["panels"]:
        for reader in (panel, *panel["targets"]):
            assert reader["datasource"] == {"type": source["type"], "uid": source["uid"]}


# Compose --------------------------------------------------------------------------------------


def test_ports_images_and_mounts_of_the_compose_file() -> None:
    """Ports are published on loopback only, images are pinned, and mounted files exist."""
    services = COMPOSE["services"].values()
    ports = [port for service in services for port in service.get("ports", [])]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name in ("service", *REPLICAS):
        assert COMPOSE["services"][name]["image"] == f"keymatch:{version}"
    for service in services:
        _, _, tag = service["image"].rpartition(":")
        assert re.fullmatch(r"v?\d+\.\d+(\.\d+)?", tag), service["image"]
        for mount in service["volumes"]:
            if isinstance(mount, dict) or ":" not in mount:  # or a volume of this container alone
                continue
            source = mount.split(":")[0]
            assert (ROOT / source).exists() if source[0] == "." else source in COMPOSE["volumes"]


def test_the_profile_of_replicas_adds_nothing_to_the_demo() -> None:
    in_profile = {name for name, one in COMPOSE["services"].items() if "profiles" in one}
    assert in_profile == {*REPLICAS, "postgres", "replicas"}
    assert all(COMPOSE["services"][name]["profiles"] == ["replicas"] for name in in_profile)


def test_nginx_leads_to_the_replicas_that_share_a_log_and_their_bundles() -> None:
    upstream = (PROXY.parent / "replicas/upstream.conf").read_text()
    assert re.findall(r"^server (\S+):8000;$", upstream, re.MULTILINE) == REPLICAS
    nginx = COMPOSE["services"]["replicas"]
    listens = (PROXY.parent / "replicas/listen.conf").read_text()
    assert f"listen {nginx['ports'][0].rpartition(':')[2]};" in listens
    mounts = dict(mount.split(":")[:2] for mount in nginx["volumes"])
    included = re.findall(r"include (\S+);", DIRECTIVES)
    assert set(mounts.values()) == {f"/etc/nginx/{name}" for name in ("nginx.conf", *included)}
    demo = COMPOSE["services"]["service"]
    for name in REPLICAS:
        replica = COMPOSE["services"][name]
        assert set(demo["command"]) - set(replica["command"]) == {"--state=/state"}
        assert not replica["volumes"][1].startswith("bundles:")  # the demo has another log
        url = sa.make_url(replica["environment"][STATE_VARIABLE])
        database = COMPOSE["services"][url.host]["environment"]
        assert (url.username, url.password) == tuple(database.values())
        assert url.database == database["POSTGRES_USER"]  # PostgreSQL's default
        assert replica["mem_limit"] == demo["mem_limit"]


def test_prometheus_scrapes_the_service_of_the_compose_file() -> None:
    [job] = document("prometheus/prometheus.yml")["scrape_configs"]
    assert job["job_name"] == "keymatch"
    [target] = job["static_configs"][0]["targets"]
    name, port = target.split(":")
    assert name in COMPOSE["services"]
    assert f"--port={port}" in COMPOSE["services"][name]["command"]


def instruction(name: str) -> Any:
    """The JSON argument of an instruction in the image's last stage."""
    [argument] = re.findall(rf"^{name} (\[.*\])$", FINAL, re.MULTILINE)
    return json.loads(argument)


def test_snapshots_have_a_folder_that_the_service_may_write_to() -> None:
    """Compose and the image name the same folder, and the image's user owns it."""
    service = COMPOSE["services"]["service"]
    assert "bundles:/bundles" in service["volumes"]
    assert "bundles" in COMPOSE["volumes"]
    assert "/bundles" in instruction("VOLUME")
    assert re.search(r"install -d -o (\d+) -g \1 /bundles /state", FINAL)
    image = [f"{a}={b}" for a, b in pairwise(instruction("CMD"))]
    for arguments in (service["command"], image):
        assert {"--bundle=/bundle", "--bundles=/bundles"} <= set(arguments)


# Image ----------------------------------------------------------------------------------------


def test_hadolint_accepts_the_dockerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


def test_the_extras_of_images_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = ("Dockerfile", "deploy/README.md", "deploy/kubernetes/shards/kustomization.yaml")
    for file in files:
        images = re.findall(r"(?:ARG|--build-arg) EXTRAS=([\w,]+)", (ROOT / file).read_text())
        assert images, file
        for extras in images:
            assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def test_the_builder_gets_every_file_that_the_dockerfile_copies() -> None:
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {source.partition("/")[0] for sources in copies for source in sources.split()}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}


def test_the_image_has_a_numeric_user_api_keys_and_a_health_check_in_python() -> None:
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", FINAL, re.MULTILINE)
    command = instruction("CMD")
    assert command[0] == "serve"
    assert "0.0.0.0" in command
    assert "--allow-anonymous" not in command
    python, option, program = instruction("HEALTHCHECK .*CMD")
    assert (python, option) == ("python", "-c")
    compile(program, "HEALTHCHECK", "exec")
    assert "/health/ready" in program


# Memory: the limit covers all that the service may use ----------------------------------------


def test_the_demo_holds_all_that_the_defaults_allow() -> None:
    service = COMPOSE["services"]["service"]
    limit = bytes_of(service["mem_limit"].upper() + "i")
    [tmp] = [bytes_of(mount.split("=")[1].upper() + "i") for mount in service["tmpfs"]]
    engine = EngineSettings(threads=2)  # independent of the machine
    _, used = budget(Settings(engine=engine, server=ServerSettings(memory_bytes=limit - tmp)))
    assert used + tmp <= limit


# Proxy ----------------------------------------------------------------------------------------


@pytest.mark.skipif(
    not (shutil.which("nginx") and shutil.which("openssl")),
    reason="nginx or openssl is not installed: apt-get install nginx openssl",
)
def test_nginx_accepts_the_example(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    for path in PROXY.parent.glob("*.conf"):
        shutil.copy(path, tmp_path)
    key, certificate = tmp_path / "tls/keymatch.key", tmp_path / "tls/keymatch.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=keymatch",
         "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )  # fmt: skip
    tested = subprocess.run(
        ["nginx", "-t", "-q", "-c", tmp_path / "nginx.conf", "-g", f"pid {tmp_path}/pid;"],
        capture_output=True,
        text=True,
    )
    assert (tested.returncode, tested.stdout + tested.stderr) == (0, "")


def directive(name: str, text: str = DIRECTIVES) -> str:
    """Return the value of the first nginx directive with this name."""
    found = re.search(rf"^\s*{name} ([^;]+);", text, re.MULTILINE)
    assert found is not None, name
    return found[1]


def test_the_proxy_has_the_bounds_of_the_service() -> None:
    server, limits = ServerSettings(), Limits()
    number, size = directive("large_client_header_buffers").split()
    assert int(number) * int(size.removesuffix("k")) * 1_024 == server.header_bytes
    assert directive("client_header_timeout") == f"{server.header_seconds}s"
    for name in ("client_body_timeout", "send_timeout"):
        assert directive(name) == f"{server.idle_seconds}s"
    assert int(directive("client_max_body_size").removesuffix("m")) * 1_024**2 == limits.body_bytes
    first, *_, last = map(int, re.findall(r"proxy_read_timeout (\d+)s;", DIRECTIVES))
    assert first * 1_000 > limits.deadline_ms
    assert last > EngineSettings().snapshot_seconds
    kept = directive("keepalive_timeout", DIRECTIVES.partition("upstream")[2])
    assert int(kept.removesuffix("s")) < server.idle_seconds
