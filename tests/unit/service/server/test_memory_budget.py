"""All memory limits are shares of one budget, and a start checks that the settings fit into it."""

from dataclasses import replace
from pathlib import Path

import pytest

from service.core.bundle import manifest
from service.core.bundle.manifest import Manifest
from service.core.errors import InvalidConfig
from service.server import memory_budget
from service.server.memory_budget import LEAST_LIVE_BYTES, MOST_LIVE_BYTES, shares, within_budget
from service.settings import EngineSettings, Limits, ServerSettings, Settings

GIB = 1024**3


@pytest.fixture
def bundle(tiny_bundle_folder: Path) -> Manifest:
    return manifest.read(tiny_bundle_folder)


def settings(
    live_bytes: int | None = None, memory_bytes: int | None = None, **server: int
) -> Settings:
    return Settings(
        engine=EngineSettings(threads=2, live_bytes=live_bytes),
        server=ServerSettings(memory_bytes=memory_bytes, **server),
    )


def total(decided: Settings, bundle: Manifest) -> int:
    return sum(share.size for share in shares(decided, bundle))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("memory", [4 * GIB, 6 * GIB, 8 * GIB])
def test_the_live_memory_takes_what_others_leave(
    bundle: Manifest, memory: int, workers: int
) -> None:
    decided = within_budget(settings(memory_bytes=memory, workers=workers), bundle)
    live = decided.engine.live_bytes
    assert live is not None
    assert LEAST_LIVE_BYTES < live < MOST_LIVE_BYTES
    assert memory - 10 < total(decided, bundle) <= memory


@pytest.mark.parametrize(
    ("machine", "live", "told"),
    [(100 * GIB, MOST_LIVE_BYTES, False), (GIB, LEAST_LIVE_BYTES, True)],
)
def test_what_is_not_set_is_what_the_machine_allows_within_bounds(
    bundle: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    machine: int,
    live: int,
    told: bool,
) -> None:
    monkeypatch.setattr(memory_budget, "memory_limit", lambda: machine)
    decided = within_budget(settings(), bundle)
    assert (decided.server.memory_bytes, decided.engine.live_bytes) == (machine, live)
    assert ("server.memory_bytes" in caplog.text) is told  # a small machine is not refused


def test_too_much_live_memory_is_refused_and_told_how_much_fits(bundle: Manifest) -> None:
    wanted = settings(live_bytes=2 * GIB, memory_bytes=4 * GIB)
    with pytest.raises(
        InvalidConfig, match=r"lower engine\.live_bytes to at most (\d+)"
    ) as refused:
        within_budget(wanted, bundle)
    most = int(str(refused.value).partition("at most ")[2].split(",")[0])
    fitting = within_budget(settings(live_bytes=most, memory_bytes=4 * GIB), bundle)
    assert fitting.engine.live_bytes == most


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        (
            {"server": ServerSettings(memory_bytes=3 * GIB, connections=20_000)},
            "server.connections",
        ),
        ({"limits": Limits(held_bytes=2 * GIB)}, "limits.held_bytes"),
        ({"engine": EngineSettings(threads=64)}, "engine.threads"),
        ({"engine": EngineSettings(threads=2, cached_queries=9**8)}, "engine.cached_queries"),
    ],
)
def test_where_no_live_memory_would_help_the_largest_share_is_named(
    bundle: Manifest, changed: dict[str, Limits], setting: str
) -> None:
    wanted = replace(settings(memory_bytes=3 * GIB), **changed)
    with pytest.raises(InvalidConfig, match=rf"lower {setting}, whose share is \d+, or raise"):
        within_budget(wanted, bundle)


def test_every_setting_that_a_share_names_exists(bundle: Manifest) -> None:
    tables = vars(settings())
    for share in shares(settings(), bundle):
        table, _, name = share.setting.partition(".")
        assert not share.setting or hasattr(tables[table], name)
