"""A file overrides default settings, the command line overrides the file, and errors are clear."""

from pathlib import Path
from typing import Any

import pytest

from service import settings as settings_module
from service.core.errors import InvalidConfig
from service.core.processes.resources import available_cores
from service.http.access import Access
from service.server.worker import ServeConfig
from service.settings import EngineSettings, Settings, load_settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keymatch.toml"


def test_no_file_or_an_empty_one_means_the_defaults(file: Path) -> None:
    settings = load_settings(None, {"port": None, "workers": 1})
    file.write_text("")
    assert load_settings(file, {"workers": 1}) == settings
    assert settings == Settings(engine=EngineSettings(threads=available_cores()))
    assert settings.limits.queries == 256
    assert settings.limits.query_characters == 2048
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8000)


def test_the_command_line_stands_above_the_file_and_that_above_the_defaults(file: Path) -> None:
    file.write_text("[server]\nport = 9000\nworkers = 3\n[engine]\nqueue_queries = 7\n")
    settings = load_settings(file, {"port": 9001, "host": None})
    assert (settings.server.port, settings.server.workers) == (9001, 3)
    assert settings.engine.queue_queries == 7
    assert settings.server.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[limit]", "limit is unknown; known are limits, engine, server"),
        ("[engine]\nthread = 2", "engine.thread is unknown; known are device, threads, "),
        ("[server]\nprot = 1", "server.prot is unknown; known are host, port, "),
        ("[server]\nprot = 1", "; did you mean port?"),
        ("[limits]\ntop_k = '3'", "limits.top_k: must be a whole number"),
        ("[limits]\ntop_k = 3.0", "limits.top_k: must be a whole number"),
        ("[limits]\ntop_k = true", "limits.top_k: must be a whole number"),
        ("[limits]\ntop_k = 0", "limits.top_k: must be at least 1"),
        ("[server]\nport = 65536", "server.port: must be at most 65535"),
        ("[server]\nport = 99999999999999999999", "server.port: must be at most"),
        ("[server]\nhost = 1", "server.host: must be a string"),
        ("[server]\nallow_anonymous = 1", "server.allow_anonymous: must be true or false"),
        ("server = 3", "server: "),
        ("[limits", "is not TOML: "),
    ],
)
def test_objections_name_file_key_and_what_is_allowed(file: Path, content: str, said: str) -> None:
    file.write_text(content)
    with pytest.raises(InvalidConfig) as objection:
        load_settings(file, {})
    assert str(objection.value).startswith(str(file))
    assert said in str(objection.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(file: Path, content: bytes | None) -> None:
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidConfig, match=rf"{file} cannot be read"):
        load_settings(file, {})


@pytest.mark.parametrize("option", [{"port": -1}, {"workers": 0}])
def test_objections_to_options_name_the_command_line(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=r"^command line: server\."):
        load_settings(None, option)


@pytest.mark.parametrize(
    ("cores", "gigabytes", "workers", "threads"),
    [(1, 64, 1, 1), (2, 64, 2, 1), (8, 64, 8, 1), (8, 13, 4, 2), (2, 4, 1, 2), (2, 1, 1, 2)],
)
def test_by_default_each_core_has_a_process_if_the_memory_suffices(
    monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: int, workers: int, threads: int
) -> None:
    monkeypatch.setattr(settings_module, "available_cores", lambda: cores)
    monkeypatch.setattr(settings_module, "memory_limit", lambda: gigabytes * 1024**3)
    settings = load_settings(None, {})
    assert (settings.server.workers, settings.engine.threads) == (workers, threads)
    settings = load_settings(None, {"memory_bytes": 64 * 1024**3})
    assert settings.server.workers == cores


@pytest.mark.parametrize(("workers", "threads"), [(1, 8), (2, 4), (3, 2), (8, 1), (9, 1)])
def test_workers_divide_the_cores_unless_threads_are_set(
    file: Path, monkeypatch: pytest.MonkeyPatch, workers: int, threads: int
) -> None:
    monkeypatch.setattr(settings_module, "available_cores", lambda: 8)
    assert load_settings(None, {"workers": workers}).engine.threads == threads
    file.write_text("[engine]\nqueue_queries = 7\n")
    engine = load_settings(file, {"workers": workers}).engine
    assert engine == EngineSettings(threads=threads, queue_queries=7)
    file.write_text("[engine]\nthreads = 7\n")
    assert load_settings(file, {"workers": workers}).engine.threads == 7


def test_with_a_gpu_few_threads_take_large_batches(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "available_cores", lambda: 8)
    file.write_text('[engine]\ndevice = "cuda"\n')
    settings = load_settings(file, {})
    assert (settings.server.workers, settings.engine.threads) == (1, 2)
    assert load_settings(file, {"workers": 8}).engine.threads == 1
    file.write_text('[engine]\ndevice = "cuda"\nthreads = 5\n')
    assert load_settings(file, {}).engine.threads == 5
    file.write_text('[engine]\ndevice = "gpu"\n')
    with pytest.raises(InvalidConfig, match=r"engine\.device: must be 'cpu' or 'cuda'"):
        load_settings(file, {})


@pytest.mark.parametrize(
    ("connections", "waiters"), [(10_000, 200), (1_000, 200), (100, 20), (4, 0)]
)
def test_waiters_for_a_version_take_a_fifth_of_the_connections(
    file: Path, connections: int, waiters: int
) -> None:
    file.write_text(f"[server]\nconnections = {connections}\n")
    assert load_settings(file, {}).engine.version_waiters == waiters


@pytest.mark.parametrize(
    ("most", "connections", "waiters"), [(1_000, 1_000, 200), (368, 368, 184), (5_000, 1_000, 200)]
)
def test_waiters_leave_connections_where_few_files_can_be_open(
    most: int, connections: int, waiters: int
) -> None:
    """A worker's limits fit the number of connections that its process can keep open."""
    config = ServeConfig(
        bundle=Path("bundle"),
        bundles="bundles",
        cache=Path("cache"),
        state="",
        settings=Settings(),
        access=Access(),
    ).with_connections(most)
    assert config.settings.server.connections == connections
    assert config.settings.engine.version_waiters == waiters


def test_more_waiters_than_half_of_the_connections_are_refused(file: Path) -> None:
    file.write_text("[engine]\nversion_waiters = 50\n[server]\nconnections = 100\n")
    assert load_settings(file, {}).engine.version_waiters == 50
    file.write_text("[engine]\nversion_waiters = 501\n")
    with pytest.raises(InvalidConfig) as objection:
        load_settings(file, {})
    assert "engine.version_waiters is 501, and may be at most 500, half of" in str(objection.value)
    assert "lower it, or raise server.connections" in str(objection.value)


def test_an_option_of_the_engine_stands_above_the_file(file: Path) -> None:
    file.write_text("[engine]\nother_data = true\nqueue_queries = 7\n")
    for option, expected in ((None, True), (False, False)):
        engine = load_settings(file, {}, engine={"other_data": option}).engine
        assert (engine.other_data, engine.queue_queries) == (expected, 7)
