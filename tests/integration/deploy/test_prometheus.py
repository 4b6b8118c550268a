"""Prometheus: promtool checks the rules, and a real Prometheus scrapes a real server."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from math import isnan
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import yaml
from httpx import Client, HTTPError

from loadtests.connection import (
    Connection,
    get,
    one_by_one,
    predict,
    put_label,
    require,
)
from service.child_server import HOST, Server, free_port, running_server
from tests.support.commands import program
from tests.support.waiting import wait_for

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
PANEL_TRIES = 600  # a minute


def tool(name: str) -> str:
    return program(name, package="prometheus")


def promtool(*arguments: str | Path) -> None:
    result = subprocess.run([tool("promtool"), *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_configuration_is_valid_and_the_alerts_pass_their_own_tests() -> None:
    promtool("check", "config", FILES / "prometheus.yml")
    promtool("test", "rules", FILES / "alerts_test.yml")


def test_every_alert_is_tested_firing_and_not_firing() -> None:
    groups = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    tests = yaml.safe_load((FILES / "alerts_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == alerts


class Prometheus(Client):
    """A client of the HTTP API of a running Prometheus."""

    def data(self, path: str, **parameters: str) -> Any:
        answer = self.get(f"/api/v1/{path}", params=parameters).raise_for_status().json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def samples(self, expression: str) -> list[Any]:
        result: list[Any] = self.data("query", query=expression)["result"]
        return result

    def value(self, expression: str) -> float:
        """Return the value of the only sample; NaN if there is none or more than one."""
        samples = self.samples(expression)
        return float(samples[0]["value"][1]) if len(samples) == 1 else float("nan")

    def rules(self) -> list[Any]:
        return [rule for group in self.data("rules")["groups"] for rule in group["rules"]]

    def answers(self) -> bool:
        try:
            return self.samples("vector(1)") != []
        except HTTPError:
            return False


@pytest.fixture(scope="module")
def server(tiny_bundle_folder: Path) -> Iterator[Server]:
    tool("prometheus")
    with running_server(tiny_bundle_folder, options=("--workers", "1")) as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus with our configuration, except that it scrapes the server, every second."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((FILES / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"{HOST}:{server.port}"]}]
    shutil.copy(FILES / "alerts.yml", folder)
    path, port = folder / "prometheus.yml", free_port()
    path.write_text(yaml.safe_dump(config))
    command = [tool("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={folder / 'db'}"]
    command += [f"--web.listen-address={HOST}:{port}"]
    running = Server(command, log=folder / "prometheus.log", port=port)
    try:
        with Prometheus(base_url=running.url, timeout=30) as prometheus:
            wait_for(lambda: running.process.poll() is not None or prometheus.answers())
            assert running.process.poll() is None, running.failure("ended")
            wait_for(lambda: prometheus.value('up{job="keymatch"}') == 1)
            yield prometheus
    finally:
        running.stop()


def test_prometheus_counts_what_the_server_answered(server: Server, prometheus: Prometheus) -> None:
    answered = 'keymatch_requests_total{route="/predict", status="200"}'
    before = prometheus.value(answered)
    one_by_one(server.port, map(predict, ("boots", "tent", "lamp")))
    one_by_one(server.port, [put_label("sled", "wooden sled")])
    expected = 3 + (0 if isnan(before) else before)
    wait_for(lambda: prometheus.value(answered) == expected)
    wait_for(lambda: prometheus.value("keymatch_memory_version") == 1)
    assert prometheus.value("keymatch_log_lag_events") == 0
    assert prometheus.value("keymatch_build_info") == 1


def test_the_autoscalers_metric_is_how_long_queries_wait(
    server: Server, prometheus: Prometheus
) -> None:
    """Evaluate the adapter's query, with the labels of this scrape as those of a pod."""
    [rule] = yaml.safe_load((FILES / "adapter.yml").read_text())["rules"]
    expression = (
        rule["metricsQuery"]
        .replace("<<.LabelMatchers>>", f'instance="{HOST}:{server.port}"')
        .replace("<<.GroupBy>>", "instance")
    )
    assert "<<" not in expression
    assert prometheus.samples(rule["seriesQuery"].partition(",")[0] + "}")
    one_by_one(server.port, map(predict, ("boots", "tent", "lamp")))
    wait_for(lambda: 0 < prometheus.value(expression) < 60_000)


def test_every_panel_has_data_under_traffic(server: Server, prometheus: Prometheus) -> None:
    missing = dict(EXPRESSIONS)
    with Connection(server.port) as connection:
        for number in count():
            require(connection.ask(predict(f"boots {number}")))
            require(connection.ask(put_label("sled", f"sled {number}")))
            require(connection.ask(get("/labels/nothing")), status=404)
            missing = {
                title: expression
                for title, expression in missing.items()
                if not prometheus.samples(expression)
            }
            if not missing:
                break
            assert number < PANEL_TRIES, missing
            sleep(0.1)


def test_prometheus_evaluates_every_alert_and_none_fires(prometheus: Prometheus) -> None:
    wait_for(lambda: all(rule["health"] == "ok" for rule in prometheus.rules()))
    rules = prometheus.rules()
    assert len(rules) == RULES
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
