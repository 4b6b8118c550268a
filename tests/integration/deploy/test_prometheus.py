"""Prometheus: promtool checks the rules, and a real Prometheus scrapes a real server."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from loadtests.clients.connection import Connection, get, predict, put_label, require
from service.child_server import HOST, Server, free_port, running_server

ROOT = Path(__file__).parents[3]
FILES = ROOT / "deploy/prometheus"
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/keymatch.json").read_text())
EXPRESSIONS = {
    f"{panel['title']} {target['refId']}": target["expr"]
    .replace("$__rate_interval", "10s")
    .replace("$instance", ".*")
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
RULES = 10


def tool(name: str) -> str:
    """The path of a program in Debian's package prometheus; if missing, fail in CI, else skip."""
    path = shutil.which(name)
    if path is None:
        message = f"{name} is not installed: apt-get install prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path


def promtool(*arguments: str | Path) -> None:
    result = subprocess.run([tool("promtool"), *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_configuration_and_its_rules_are_valid() -> None:
    promtool("check", "config", FILES / "prometheus.yml")


def test_the_alerts_pass_their_own_tests() -> None:
    promtool("test", "rules", FILES / "alerts_test.yml")


def test_every_alert_is_tested_firing_and_not_firing() -> None:
    groups = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    tests = yaml.safe_load((FILES / "alerts_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == alerts


def test_every_expression_of_the_dashboard_is_valid_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(EXPRESSIONS.values())
    ]
    path = tmp_path / "dashboard.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", path)


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://{HOST}:{port}"

    def query(self, expression: str) -> list[Any]:
        answer = self._get("/api/v1/query", query=expression)
        result: list[Any] = answer["result"]
        return result

    def value(self, expression: str) -> float:
        """Return the value of the only sample; NaN if there is none or more than one."""
        samples = self.query(expression)
        return float(samples[0]["value"][1]) if len(samples) == 1 else float("nan")

    def rules(self) -> list[Any]:
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self.url}{path}?{urlencode(parameters)}", timeout=5) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]


@contextmanager
def running_prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Start Prometheus with our configuration, but scrape this target, every second."""
    config = yaml.safe_load((FILES / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    shutil.copy(FILES / "alerts.yml", folder)
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    port, log = free_port(), folder / "prometheus.log"
    command = [tool("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={folder / 'db'}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--web.listen-address={HOST}:{port}"], stdout=output, stderr=output
        )
    try:
        prometheus = Prometheus(port)
        eventually(lambda: process.poll() is not None or answers(prometheus))
        assert process.poll() is None, log.read_text()
        yield prometheus
    finally:
        process.terminate()
        process.wait(20)


def answers(prometheus: Prometheus) -> bool:
    try:
        return prometheus.query("vector(1)") != []
    except (URLError, ConnectionError):
        return False


def eventually(condition: Any, *, seconds: float = 30) -> None:
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, f"the condition did not become true within {seconds} s"
        sleep(0.1)


@pytest.fixture(scope="module")
def server(tiny_bundle_folder: Path) -> Iterator[Server]:
    tool("prometheus")
    with running_server(tiny_bundle_folder, options=("--workers", "1")) as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with running_prometheus(folder, f"{HOST}:{server.port}") as prometheus:
        eventually(lambda: prometheus.value('up{job="keymatch"}') == 1)
        yield prometheus


def test_prometheus_counts_what_the_server_answered(server: Server, prometheus: Prometheus) -> None:
    connection = Connection(server.port)
    before = prometheus.value('keymatch_requests_total{route="/predict", status="200"}')
    for query in ("boots", "tent", "lamp"):
        require(connection.ask(predict(query)))
    require(connection.ask(put_label("sled", "wooden sled")))
    connection.close()
    expected = 3 + (0 if isnan(before) else before)
    answered = 'keymatch_requests_total{route="/predict", status="200"}'
    eventually(lambda: prometheus.value(answered) == expected)
    eventually(lambda: prometheus.value("keymatch_memory_version") == 1)
    assert prometheus.value("keymatch_log_lag_events") == 0
    assert prometheus.value("keymatch_build_info") == 1


def test_every_panel_has_data_under_traffic(server: Server, prometheus: Prometheus) -> None:
    connection = Connection(server.port)
    missing = set(EXPRESSIONS)

    def all_panels_have_data() -> bool:
        require(connection.ask(predict(f"boots {monotonic()}")))
        require(connection.ask(put_label("sled", f"sled {monotonic()}")))
        require(connection.ask(get("/labels/nothing")), status=404)
        missing.difference_update(
            title for title in tuple(missing) if prometheus.query(EXPRESSIONS[title])
        )
        return not missing

    try:
        eventually(all_panels_have_data)
    finally:
        connection.close()
        assert not missing


def test_prometheus_evaluates_every_alert_and_none_fires(prometheus: Prometheus) -> None:
    eventually(lambda: all(rule["health"] == "ok" for rule in prometheus.rules()))
    rules = prometheus.rules()
    assert len(rules) == RULES
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
