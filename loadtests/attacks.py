"""`python -m loadtests.attacks`: how much an attacking client disturbs a normal one.

A client sends predictions in an open loop, first alone, then during each attack. Reports the 99th
percentile of both rounds, answers other than 200, the slowest probe, and the peak memory next to
its budget. Also reports the time of the first request after the attack, answers of 500 to anyone,
and logged defects. The attacker uses the same cores. Writes attacks.json and attacks.md.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Event
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from loadtests.attackers import ATTACKS
from loadtests.connection import Connection, predict, with_key
from loadtests.harness import Scenario, option, say
from loadtests.loops import Outcome, drive
from loadtests.report import Row
from loadtests.resources import metric, metrics_of, process_tree, resident_of
from loadtests.traffic import PREDICT, Health, Load, Summary, probing, repeated, warm_up
from service.child_server import Server
from service.core.bundle import manifest
from service.core.bundle.manifest import Manifest
from service.core.errors import InvalidInput
from service.server.memory_budget import MEMORIES, shares
from service.settings import load_settings

RATIO = 5.0  # p99 during an attack, relative to the quiet round
PROBE_SECONDS = 0.1
REFUSED = ("429", "503")  # allowed answers to the normal client during an attack
FIRST_RATIO = 5.0  # time of the first request after the attack, relative to the quiet median
FIRST_SECONDS = 0.02  # always allowed for the first request
BEGINNING_SECONDS = 2.0  # the attack runs this long before the normal client is measured
ENDING_SECONDS = 2.0  # an attacker may take this long to end by itself
MEMORY_SECONDS = 0.2  # between two readings of the memory
_DEFECTS = (b'"message":"defect"', b"Exception in ASGI application", b"Traceback (most recent")

Attack = Callable[[int, Event, Event], None]  # port; set when it begins; ends it


@dataclass(frozen=True, kw_only=True)
class Disturbance(Scenario):
    """One server, and a normal client that is disturbed in several ways, one after another."""

    judged = True

    rate: float = option("Predictions per second of the normal client.", 40.0)
    seconds: float = option("Duration of each round.", 10.0)
    only: tuple[str, ...] = option("Names of attacks. Default: all.", ())

    def disturbed(
        self,
        server: Server,
        attacks: Mapping[str, Attack],
        *,
        ratio: float,
        allowed: Sequence[str] = (),
        key: str = "",
    ) -> Iterator[Row]:
        """Measure a quiet round and one during the attack, for each attack; judge both."""
        facts, texts = manifest.read(self.bundle), self.texts()
        load = Load(rate=self.rate, seconds=self.seconds, seed=self.seed)
        unknown = ", ".join(sorted(set(self.only) - set(attacks)))
        if unknown:
            raise InvalidInput(f"no attack is named {unknown}; there are: {', '.join(attacks)}")
        warm_up(server, texts, key=key)
        for turn, name in enumerate(self.only or attacks):
            say(f"{name} ...")
            quiet = measure_round(server, facts, texts, load, turn=2 * turn, key=key)
            beside = measure_round(
                server, facts, texts, load, attack=attacks[name], turn=2 * turn + 1, key=key
            )
            yield from rows_of(name, quiet, beside, ratio=ratio, allowed=allowed)


@dataclass(frozen=True, kw_only=True)
class Attacks(Disturbance):
    """A server that anyone may use."""

    title = "Attacks"

    def rows(self) -> Iterator[Row]:
        """Attack a server that may also write snapshots."""
        with (
            TemporaryDirectory(prefix="keymatch-snapshots-") as snapshots,
            self.server("--bundles", snapshots) as server,
        ):
            attacks = {name: partial(begin, name) for name in ATTACKS}
            yield from self.disturbed(server, attacks, ratio=RATIO, allowed=REFUSED)


def begin(name: str, port: int, begun: Event, ended: Event) -> None:
    """Run the attack with a name until `ended` is set."""
    begun.set()
    ATTACKS[name](port, ended)


@dataclass(frozen=True, kw_only=True)
class Round:
    """The answers to the normal client and to a probe, and the memory of the service."""

    outcome: Outcome
    health: Health
    most_resident: float  # peak megabytes of all its processes
    budget: float  # megabytes that its processes may take
    first_after: float  # seconds that the first request after the round took
    first_status: int
    internal_errors: int  # answers of 500 to any client
    defects: int  # lines in the service's log that report a defect


def measure_round(
    server: Server,
    bundle: Manifest,
    queries: Iterator[str],
    load: Load,
    *,
    attack: Attack | None = None,
    turn: int = 0,
    key: str = "",
) -> Round:
    """Send the normal load with an API key, together with an attack if given."""
    errors_before, defects_before = internal_errors(metrics_of(server.port)), defects(server)
    with watching_memory(server.pid) as megabytes:
        attacker = attacking(attack, server.port) if attack else nullcontext()
        with attacker, probing(server) as health:
            stream = load.predictions(queries, turn=turn, key=key)
            outcome = drive(server.port, [stream])[PREDICT]
        began = perf_counter()
        with Connection(server.port) as connection:
            status, _ = connection.ask(with_key(predict(next(queries)), key))
        seconds = perf_counter() - began
    metrics = metrics_of(server.port)
    return Round(
        outcome=outcome,
        health=health,
        most_resident=max(megabytes),
        budget=budget(bundle, metrics),
        first_after=seconds,
        first_status=status,
        internal_errors=internal_errors(metrics) - errors_before,
        defects=defects(server) - defects_before,
    )


@contextmanager
def attacking(attack: Attack, port: int) -> Iterator[None]:
    """Run an attack in a process during the block, which begins some seconds later."""
    spawned = multiprocessing.get_context("spawn")
    begun, ended = spawned.Event(), spawned.Event()
    process = spawned.Process(target=attack, args=(port, begun, ended), daemon=True)
    process.start()
    while not begun.wait(0.1):
        if not process.is_alive():
            raise ChildProcessError("the attack has not begun; its error is above")
    sleep(BEGINNING_SECONDS)
    try:
        yield
    finally:
        ended.set()
        process.join(ENDING_SECONDS)
        process.kill()  # an attacker that still waits for an answer
        process.join()


def rows_of(
    name: str,
    quiet: Round,
    beside: Round,
    *,
    ratio: float = RATIO,
    allowed: Sequence[str] = REFUSED,
) -> Iterator[Row]:
    """Judge the round during an attack: p99 at most `ratio` times the quiet, `allowed` failures."""
    usual, attacked = Summary.of(quiet.outcome.latencies), Summary.of(beside.outcome.latencies)
    failures = beside.outcome.failures
    yield Row(
        what=f"{name}: a normal client's p99",
        goal=f"<= {ratio:g}x, no failures" + (f" but {', '.join(allowed)}" if allowed else ""),
        measured=f"{attacked.p99 / usual.p99:.1f}x: {usual.p99:.1f} to {attacked.p99:.1f} ms"
        f" (p50 {usual.p50:.1f} to {attacked.p50:.1f}); not answered: {failures or 'none'}",
        met=attacked.p99 <= ratio * usual.p99 and failures.keys() <= set(allowed),
        figures={"quiet": usual, "attacked": attacked, **failures},
    )
    slowest, failed = max(beside.health.seconds, default=float("inf")), beside.health.failures
    yield Row.bounded(
        f"{name}: slowest probe",
        1e3 * slowest,
        most=1e3 * PROBE_SECONDS,
        unit=" ms",
        measured=f"{1e3 * slowest:.0f} ms; failed: {', '.join(failed) or 'none'}",
        sound=not failed,
        figures={"probe": slowest},
    )
    yield Row.bounded(
        f"{name}: most memory of all processes",
        beside.most_resident,
        most=beside.budget,
        unit=" MB",
        measured=f"{quiet.most_resident:.0f} to {beside.most_resident:.0f} MB",
        figures={"resident": beside.most_resident, "budget": beside.budget},
    )
    first = "answered" if beside.first_status == 200 else f"answered with {beside.first_status}"
    wrong = {"internal_errors": beside.internal_errors, "defects": beside.defects}
    yield Row.bounded(
        f"{name}: first request afterwards; answers of 500, and logged defects",
        1e3 * beside.first_after,
        most=max(1e3 * FIRST_SECONDS, FIRST_RATIO * usual.p50),
        unit=" ms; none",
        measured=f"{first} in {1e3 * beside.first_after:.1f} ms; {beside.internal_errors},"
        f" {beside.defects}",
        sound=beside.first_status == 200 and not any(wrong.values()),
        figures={"first_after": beside.first_after, **wrong},
    )


# The service's metrics, log and memory ---------------------------------------------------------


def internal_errors(metrics: str) -> int:
    """Return how many requests were answered with 500."""
    return int(metric(metrics, "keymatch_requests_total", 'status="500"'))


def defects(server: Server) -> int:
    """Return how many lines of the service's log report a defect."""
    lines = server.log.read_bytes().splitlines()
    return sum(any(sign in line for sign in _DEFECTS) for line in lines)


def budget(bundle: Manifest, metrics: str) -> float:
    """Megabytes that a service with default settings may take, including what it has learned."""
    live = metric(metrics, "keymatch_live_bytes")
    others = sum(share.size for share in shares(load_settings(None, {}), bundle))
    return (others + MEMORIES * live) / 1e6


@contextmanager
def watching_memory(pid: int) -> Iterator[list[float]]:
    """Collect the memory of a process tree during the block, in megabytes."""
    megabytes: list[float] = []

    def watch() -> None:
        megabytes.append(resident_of(process_tree(pid)).total)

    watch()
    with repeated(watch, seconds=MEMORY_SECONDS):
        yield megabytes


if __name__ == "__main__":
    Attacks.command()
