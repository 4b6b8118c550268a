"""Numbers of several workers: processes of their own, since the mode is chosen at import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.telemetry import Telemetry, forget_ended

HEAD = """
import os, sys
from pathlib import Path
from service.telemetry import Telemetry, forget_ended

folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
telemetry = Telemetry(folder)
"""
COUNT = """
telemetry.requests.labels("/predict", "200").inc(2)
telemetry.cache_hits.inc(3)
telemetry.batch_size.labels("predict").observe(4)
telemetry.seal_seconds.observe(0.5)
telemetry.reloads.labels("ok").inc()
telemetry.queue_depth.set(5)
telemetry.memory_rows.labels("live").set(int(sys.argv[1]))
telemetry.memory_version.set(int(sys.argv[1]))
telemetry.log_lag_events.set(int(sys.argv[1]))
telemetry.build_info.labels("1", "tiny").set(1)
print(os.getpid())
"""
RENDER = "sys.stdout.write(telemetry.render().decode())"


def worker(folder: Path, code: str, *arguments: object) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", HEAD + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A folder in which two workers counted, and their process ids."""
    folder = tmp_path_factory.mktemp("metrics")
    return folder, [int(worker(folder, COUNT, version)) for version in (10, 7)]


def test_counts_of_workers_add_up(counted: tuple[Path, list[int]]) -> None:
    found = samples(worker(counted[0], RENDER))
    assert found["keymatch_requests_total", "/predict", "200"] == 4
    assert found["keymatch_encode_cache_hits_total",] == 6
    assert found["keymatch_batch_size_sum", "predict"] == 8
    assert found["keymatch_batch_size_count", "predict"] == 2
    assert found["keymatch_seal_seconds_count",] == 2
    assert found["keymatch_reloads_total", "ok"] == 2
    assert found["keymatch_reloads_total", "failed"] == 0


def test_gauges_say_what_is_true_of_all_workers(counted: tuple[Path, list[int]]) -> None:
    # The process that renders has measured nothing yet: its own gauges must not show.
    found = samples(worker(counted[0], RENDER))
    assert found["keymatch_queue_depth",] == 10
    assert found["keymatch_memory_rows", "live"] == 7  # of the worker that measured last
    assert found["keymatch_memory_version",] == 7
    assert found["keymatch_log_lag_events",] == 10
    assert found["keymatch_build_info", "tiny", "1"] == 1


def test_gauges_of_ended_workers_vanish_and_counts_stay(counted: tuple[Path, list[int]]) -> None:
    folder, processes = counted
    forget = f"forget_ended(folder, {{os.getpid(), {processes[0]}}})\n"
    found = samples(worker(folder, forget + RENDER))
    assert found["keymatch_queue_depth",] == 5
    assert found["keymatch_memory_version",] == 10
    assert found["keymatch_requests_total", "/predict", "200"] == 4
    forget_ended(folder, {processes[0]})
    assert not [*folder.glob(f"gauge_*_{processes[1]}.db")]


def test_both_modes_show_the_same_names(tmp_path: Path) -> None:
    alone = {name for name, *_ in samples(Telemetry().render().decode())}
    shared = {name for name, *_ in samples(worker(tmp_path, RENDER))}
    assert shared == alone
