"""Metrics of one process and of several real processes; log lines in every situation."""

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import orjson
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service import telemetry as module
from service.telemetry import STAGES, JsonLines, QueuedLines, Telemetry, forget_ended
from tests.support.waiting import wait_for

HEAD = """
import os, sys
from pathlib import Path
from service.telemetry import Telemetry

telemetry = Telemetry(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
"""
COUNT = """
telemetry.observe_request("/predict", 200, 0.003)
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
DAMAGE = {
    "empty": b"",
    "a part of a number": b"\x10\x00",
    "longer than it is": b"\xff\xff\x00\x00" + bytes(4) + b"\x10\x00\x00\x00",
    "beyond its end": b"\x20\x00\x00\x00" + bytes(4) + b"\xff\x00\x00\x00" + bytes(20),
    "not UTF-8": b"\x28\x00\x00\x00" + bytes(4) + b"\x0c\x00\x00\x00" + b"\xff" * 12 + bytes(16),
    "not JSON": b"\x28\x00\x00\x00" + bytes(4) + b"\x0c\x00\x00\x00" + b"{" * 12 + bytes(16),
    "zeros": bytes(65_536),
}


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


# One process ----------------------------------------------------------------------------------


@pytest.fixture
def telemetry() -> Telemetry:
    telemetry = Telemetry()
    telemetry.observe_stages(dict.fromkeys(STAGES, 0.001))
    for status in (200, 429):
        telemetry.observe_request("/predict", status, 0.003)
    telemetry.memory_rows.labels("base").set(14)
    return telemetry


def test_the_text_is_that_of_the_library_without_times_of_creation(telemetry: Telemetry) -> None:
    lines = generate_latest(telemetry.registry).decode().splitlines()
    expected = [line for line in lines if "_created" not in line]
    assert telemetry.render().decode().splitlines() == expected
    assert telemetry.render() == telemetry.render()


def test_it_rests_before_each_family(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(module, "sleep", rests.append)
    text = telemetry.render().decode()
    assert len(rests) == text.count("# TYPE ") > 10


def test_what_is_counted_meanwhile_is_not_lost(telemetry: Telemetry) -> None:
    def count() -> None:
        for _ in range(200):
            telemetry.observe_request("/predict", 200, 0.003)
            telemetry.observe_request("/labels", 200, 0.003)
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    while thread.is_alive():
        telemetry.render()
    thread.join()
    lines = telemetry.render().decode().splitlines()
    assert 'keymatch_requests_total{route="/predict",status="200"} 201.0' in lines
    assert 'keymatch_request_seconds_count{route="/labels"} 200.0' in lines


# Several processes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A folder with the metrics of two workers, and the workers' process ids."""
    folder = tmp_path_factory.mktemp("metrics")
    return folder, [int(worker(folder, COUNT, version)) for version in (10, 7)]


def test_counts_add_up_and_gauges_say_what_is_true_of_all(counted: tuple[Path, list[int]]) -> None:
    # The process that renders the metrics has measured nothing, so its own gauges must not count.
    found = samples(worker(counted[0], RENDER))
    assert found["keymatch_requests_total", "/predict", "200"] == 2
    assert found["keymatch_encode_cache_hits_total",] == 6
    assert found["keymatch_batch_size_sum", "predict"] == 8
    assert found["keymatch_batch_size_count", "predict"] == 2
    assert found["keymatch_seal_seconds_count",] == 2
    assert found["keymatch_reloads_total", "ok"] == 2
    assert found["keymatch_reloads_total", "failed"] == 0
    assert found["keymatch_queue_depth",] == 10
    assert found["keymatch_memory_rows", "live"] == 7  # from the worker that measured last
    assert found["keymatch_memory_version",] == 7
    assert found["keymatch_log_lag_events",] == 10
    assert found["keymatch_build_info", "tiny", "1"] == 1


def test_gauges_of_ended_workers_vanish_and_counts_stay(
    counted: tuple[Path, list[int]], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(counted[0], tmp_path / "metrics"))
    kept, ended = counted[1]
    forget_ended(folder, {kept})
    found = samples(Telemetry(folder).render().decode())
    assert found["keymatch_queue_depth",] == 5
    assert found["keymatch_memory_version",] == 10
    assert found["keymatch_requests_total", "/predict", "200"] == 2
    assert not [*folder.glob(f"gauge_*_{ended}.db")]


def test_both_modes_show_the_same_names(tmp_path: Path) -> None:
    alone = {name for name, *_ in samples(Telemetry().render().decode())}
    shared = {name for name, *_ in samples(worker(tmp_path, RENDER))}
    assert shared == alone


@pytest.mark.parametrize("kind", ["counter", "histogram", "gauge_livesum"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_takes_nothing_from_the_others(
    counted: tuple[Path, list[int]], damage: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = counted[0] / f"{kind}_1.db"
    path.write_bytes(DAMAGE[damage])
    try:
        lines = Telemetry(counted[0]).render().decode().splitlines()
    finally:
        path.unlink()
    assert 'keymatch_requests_total{route="/predict",status="200"} 2.0' in lines
    assert 'keymatch_request_seconds_count{route="/predict"} 2.0' in lines
    assert "keymatch_queue_depth 10.0" in lines
    assert bool(caplog.records) == (damage not in ("empty", "zeros"))


# Log lines ------------------------------------------------------------------------------------


def line(message: str = "hello", exc_info: object = None, **extra: object) -> dict[str, object]:
    logger = logging.getLogger("keymatch.test")
    record = logger.makeRecord(
        "keymatch.test", logging.INFO, "file", 1, message, (), exc_info, extra=extra
    )
    text = JsonLines().format(record)
    assert "\n" not in text
    return orjson.loads(text)


def test_a_line_holds_time_level_message_extras_and_traceback() -> None:
    found = line(version=3, rows=[1, 2])
    assert found.pop("time")
    assert found == {"level": "info", "message": "hello", "version": 3, "rows": [1, 2]}
    assert line(path=object)["path"] == str(object)
    assert "_added" not in line(_added=1)  # by another library
    assert line("a\nb\u2028c")["message"] == "a\nb\u2028c"
    try:
        raise RuntimeError("broken\nin two")
    except RuntimeError:
        found = line(exc_info=sys.exc_info())
    assert "RuntimeError: broken\nin two" in str(found["trace"])


# Lines that wait -------------------------------------------------------------------------


class Reader:
    """A log handler that writes to a pipe, and the pipe's end, read when the test asks for it."""

    def __init__(self) -> None:
        self.dropped = 0
        self._read, self.write = os.pipe()
        self.handler = QueuedLines(self.write, count_dropped=self._count)
        self.handler.setFormatter(JsonLines())

    def _count(self) -> None:
        self.dropped += 1

    def log(self, message: str) -> None:
        self.handler.handle(logging.makeLogRecord({"msg": message}))

    def lines(self, count: int) -> list[dict[str, object]]:
        """Read the next `count` lines, all of them whole."""
        content = b""
        while content.count(b"\n") < count:
            content += os.read(self._read, 65_536)
        assert content.endswith(b"\n")
        return [orjson.loads(line) for line in content.splitlines()]

    def waiting(self) -> list[dict[str, object]]:
        """Read the lines that are available without waiting."""
        os.set_blocking(self._read, False)
        return self.lines(1)

    def close(self) -> None:
        os.close(self._read)
        self.handler.close()
        os.close(self.write)


@contextmanager
def reader() -> Iterator[Reader]:
    reader = Reader()
    try:
        yield reader
    finally:
        reader.close()


def reports(lines: list[dict[str, object]]) -> list[int]:
    """Return the numbers of dropped lines that the log reports."""
    said = "log lines were dropped: nobody read the log"
    return [int(str(line["lines"])) for line in lines if line["message"] == said]


@pytest.mark.parametrize("blocks", [True, False])
def test_every_line_comes_in_order(blocks: bool) -> None:
    with reader() as pipe:
        os.set_blocking(pipe.write, blocks)
        for number in range(200):
            pipe.log(f"{number:01000}")
        found: list[dict[str, object]] = []
        wait_for(lambda: found.extend(pipe.lines(1)) or len(found) == 200)
        assert [int(str(line["message"])) for line in found] == [*range(200)]
        assert not pipe.dropped


def test_nobody_waits_for_a_reader_that_has_stopped() -> None:
    sent, length = 3_000, 1_000
    with reader() as pipe:
        start = monotonic()
        for number in range(sent):
            pipe.log(f"{number:0{length}}")
        assert monotonic() - start < 2
        # Lines are kept in the pipe, in the line being written, and in the queue.
        kept = sent - pipe.dropped
        assert module.QUEUE_BYTES / (2 * length) < kept < 2 * module.QUEUE_BYTES / length + 100
        start = monotonic()
        pipe.handler.flush()
        assert monotonic() - start < 2 * module.FLUSH_SECONDS

        found: list[dict[str, object]] = []
        while len(found) < kept + len(reports(found)) or sum(reports(found)) < pipe.dropped:
            found += pipe.lines(1)
        assert sum(reports(found)) == pipe.dropped
        numbers = [int(str(line["message"])) for line in found if "lines" not in line]
        assert len(numbers) == kept
        assert numbers == sorted(set(numbers))
        pipe.log("again")
        assert pipe.lines(1)[0]["message"] == "again"


def test_at_the_end_each_line_is_written_before_its_caller_goes_on() -> None:
    with reader() as pipe:
        pipe.handler.write_at_once()
        for number in range(20):
            pipe.log(str(number))
            assert [line["message"] for line in pipe.waiting()] == [str(number)]


def test_at_the_end_a_stopped_reader_is_waited_for_once() -> None:
    with reader() as pipe:
        pipe.handler.write_at_once()
        start = monotonic()
        for _ in range(1_000):
            pipe.log("0" * 1_000)
        assert monotonic() - start < module.FLUSH_SECONDS + 1


def test_a_log_that_is_closed_stops_nobody() -> None:
    pipe = Reader()
    pipe.close()
    pipe.log("to nobody")
    pipe.handler.flush()
