"""The application opens, checks and closes its engine."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.engine.engine import State
from service.http.access import Access
from service.http.app import build_app
from service.settings import Settings
from service.telemetry import Telemetry


class OpenEngine:
    """The part of an open engine that an application without requests uses."""

    state = State.READY
    arrivals = switches = None  # no request arrives

    def __init__(self, *, broken: bool) -> None:
        self.measured = asyncio.Event()
        self.closed = False
        self._broken = broken

    def open(self) -> None:
        raise AssertionError("it is open already")

    def broken(self) -> bool:
        return self._broken

    def measure(self) -> None:
        self.measured.set()

    def close(self) -> None:
        self.closed = True


async def live(engine: Any, telemetry: Telemetry, until: asyncio.Event) -> bool:
    """Run the application until `until` is set or it calls `failed`; returns whether it did."""
    failed = asyncio.Event()
    app = build_app(
        engine, settings=Settings(), access=Access(), telemetry=telemetry, failed=failed.set
    )
    async with app.router.lifespan_context(app), asyncio.timeout(60):
        waiting = [asyncio.create_task(event.wait()) for event in (until, failed)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
    assert engine.closed
    return failed.is_set()


@pytest.mark.parametrize("broken", [False, True])
def test_only_a_broken_worker_asks_to_be_replaced(tmp_path: Path, broken: bool) -> None:
    engine = OpenEngine(broken=broken)
    assert asyncio.run(live(engine, Telemetry(tmp_path), engine.measured)) == broken
    assert engine.measured.is_set() != broken


def test_a_single_process_leaves_checking_to_its_probes(tmp_path: Path) -> None:
    async def stopped_at_once() -> bool:
        stop = asyncio.Event()
        stop.set()
        return await live(engine, Telemetry(), stop)

    engine = OpenEngine(broken=True)
    assert not asyncio.run(stopped_at_once())
    assert not engine.measured.is_set()
