"""A crash scenario: clients, servers that are killed and share one log, and the final checks."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import gettempdir
from time import monotonic, sleep
from typing import Any

import orjson
import sqlalchemy as sa

from service.core import times
from service.core.changes import UseBundle
from service.core.label_log import open_log, schema
from service.core.types import Event
from tests.crash import self_killing_service
from tests.crash.client import FUTURE, Client
from tests.crash.ledger import Form, Ledger, shown
from tests.support.commands import run
from tests.support.label_logs import Place
from tests.support.serving import ServerProcess, server_process, wait_for
from tests.support.tiny.bundles import Catalogue

# Blocks are small, so segments are built and merged all the time.
SETTINGS = """
[engine]
threads = 2
seal_rows = 64
{engine}
[server]
access_log = false
"""
CRASHES = int(os.environ.get("KEYMATCH_CRASHES", "20"))
SEED = os.environ.get("KEYMATCH_CRASH_SEED", "11")
READY_SECONDS = 30  # a test fails beyond it; the goal is 5, but machines may be busy
CLIENTS = 4
NOUNS = ("boots", "lamp", "mat", "pole", "rope", "stove", "tent", "vest")
KINDS = ("alpine", "camping", "glacier", "ultra", "winter")
CATALOGUE = Catalogue(
    labels={f"{kind}-{noun}": f"{kind} {noun}" for kind in KINDS for noun in NOUNS},
    instances={
        f"{noun} for the {kind}": (f"{kind}-{noun}", f"winter-{noun}")
        for kind in KINDS
        for noun in NOUNS
    },
)
ITEMS = {kind: f"for the {kind}" for kind in KINDS}
QUERIES = [
    "alpine", "boots camping", "down ember fuel", "glacier hood ice jacket", "kettle", "lamp mat",
    "needle ozone pole", "quilt rope stove tent", "ultra vest", "winter yak zip", "zip", "tent",
    "c0 boots", "c1 lamp", "hiking boots", "running shoes", "gas", "light for a tent", "trail", "x",
]  # fmt: skip


@dataclass
class Figures:
    """Counts of kills and acknowledged writes, and measured seconds.

    `ready`: from a process's start until it is ready. `visible`, by kind of log: from a write's
    answer until another process shows the write.
    """

    ready: list[float] = field(default_factory=list)
    visible: dict[str, list[float]] = field(default_factory=dict)
    seed: str = ""
    kills: int = 0
    writes: int = 0
    changes: Counter[str] = field(default_factory=Counter)  # that were acknowledged, by `Fact.name`

    def lines(self) -> list[str]:
        """The figures as sentences."""
        lines = []
        if self.ready:
            lines.append(
                f"crash tests {self.seed}: {self.kills} processes killed,"
                f" {self.writes} writes acknowledged;"
                f" started to ready: median {median(self.ready):.2f} s,"
                f" most {max(self.ready):.2f} s of {len(self.ready)}"
            )
        if self.changes:
            counts = (f"{count:,} {name}" for name, count in sorted(self.changes.items()))
            lines.append(f"acknowledged changes: {', '.join(counts)}")
        for log, seconds in self.visible.items():
            lines.append(
                f"visible in another process, {log}: median {1000 * median(seconds):.1f} ms,"
                f" p99 {1000 * quantiles(seconds, n=100)[98]:.1f} ms of {len(seconds)} writes"
            )
        return lines


FIGURES = Figures()


class Scenario:
    """Servers that share one bundle and one label log, and clients whose ledgers outlive them."""

    def __init__(
        self,
        folder: Path,
        bundle: Path,
        *,
        seed: str,
        state: str = "",
        items: Mapping[str, str] | None = ITEMS,
        patience: bool = False,
        engine: str = "shard_timeout_ms = 30_000",
    ) -> None:
        """`bundle`: one of `CATALOGUE`. `seed` decides what clients do, but not when.

        `state`: a URL; by default a new folder. `items`: None if the bundle has no item memory.
        `engine`: further settings of the engine.
        """
        self.bundle, self.folder = bundle, folder
        self.state: Path | str = state or folder / "state"
        self.others: set[str] = set()  # ids of labels and rules that the test itself writes
        self._servers = 0
        self._events: list[Event] = []  # those that were read last
        (folder / "tmp").mkdir(parents=True)
        self._config = folder / "keymatch.toml"
        self._config.write_text(SETTINGS.format(engine=engine))
        labels = list(CATALOGUE.labels.items())
        self.clients = []
        for number in range(CLIENTS):
            base = dict(labels[number::CLIENTS])
            trained = {
                query: voted
                for query, voted in CATALOGUE.instances.items()
                if base.keys() >= {*voted}  # an instance votes for labels of one client
            }
            its_items = None if items is None else dict([*items.items()][number::CLIENTS])
            ledger = Ledger(f"c{number}", base=base, trained=trained, items=its_items)
            self.clients.append(Client(ledger, seed=f"{seed}/{number}", patience=patience))

    @property
    def writes(self) -> int:
        """The number of acknowledged writes."""
        return sum(client.writes for client in self.clients)

    @property
    def changes(self) -> Counter[str]:
        """The acknowledged changes by `Fact.name`."""
        return sum((client.ledger.acknowledged for client in self.clients), Counter[str]())

    @property
    def refused(self) -> int:
        """The number of writes that were refused and sent again."""
        return sum(client.refused for client in self.clients)

    def wait_for_writes(self, count: int) -> None:
        """Wait until `count` more writes are acknowledged."""
        goal = self.writes + count
        wait_for(lambda: self.writes >= goal)

    # Servers -----------------------------------------------------------------------------

    @contextmanager
    def server(
        self,
        program: Sequence[str] | None = None,
        *,
        state: Path | None = None,
        wait: bool = True,
        options: Sequence[str] = (),
    ) -> Iterator[ServerProcess]:
        """Run a server on the scenario's state or on `state`; `program` replaces `-m service`.

        `options` are added to its command.
        """
        self._servers += 1
        start = monotonic()
        with server_process(
            self.bundle,
            self.state if state is None else state,
            self.folder / f"stderr-{self._servers}",
            "--config",
            str(self._config),
            *options,
            program=program,
            # Paths of sockets, which Ray has in its folder, must be short.
            env={"TMPDIR": str(self.folder / "tmp"), "RAY_TMPDIR": gettempdir()},
            wait=wait,
        ) as server:
            if wait and not options:  # a cluster takes longer to start
                FIGURES.ready.append(monotonic() - start)
                assert FIGURES.ready[-1] < READY_SECONDS
            yield server
            FIGURES.kills += server.process.poll() == -signal.SIGKILL
            for defect in server.logged("defect"):
                raise AssertionError(defect)

    @contextmanager
    def traffic(self, *servers: ServerProcess) -> Iterator[threading.Event]:
        """Let all clients send requests until the block ends; each writes to one of the servers."""
        stop, ports = threading.Event(), [server.port for server in servers]
        before, changes = self.writes, self.changes
        with ThreadPoolExecutor(len(self.clients)) as threads:
            running = []
            for number, client in enumerate(self.clients):
                port = ports[number % len(ports)]
                others = [other for other in ports if other != port]
                running.append(threads.submit(client.run, port, stop, others))
            try:
                yield stop
            finally:
                stop.set()
        FIGURES.writes += self.writes - before
        FIGURES.changes += self.changes - changes
        for work in running:
            work.result()

    @property
    def segments(self) -> Path:
        """The folder of sealed segments."""
        assert isinstance(self.state, Path)
        return self.state / "segments"

    # Checks ------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """All events of the log; the ones that were cut since are as they were read before."""
        with closing(open_log(self.state, create=False)) as log:
            cut = log.cut()
            assert cut <= len(self._events)
            self._events = [*self._events[:cut], *log.read(after=cut)]
        return list(self._events)

    def first_event(self) -> int:
        """The number of the first event that was not cut from the log."""
        with closing(open_log(self.state, create=False)) as log:
            return log.cut() + 1

    def check(self, server: ServerProcess) -> None:
        """After a restart, check that no event is lost, duplicated or invented, even by repeats."""
        outcomes = self.settle_ledgers()
        for client, outcome in zip(self.clients, outcomes, strict=True):
            client.resume(server.port, outcome)
        self.settle_ledgers()
        self.check_shown(server)

    def check_restart(self) -> None:
        """Start a server; run `check` and `prove_equal` on it."""
        with self.server() as server:
            self.check(server)
            self.prove_equal(server)

    def settle_ledgers(self) -> list[Any]:
        """Compare the log with every client's ledger."""
        events = self.events()  # `read` verifies them and finds gaps
        own = {client.ledger.owner: [e for e in events if client.ledger.owns(e)]
               for client in self.clients}  # fmt: skip
        others = sum(e.kind == UseBundle.kind or e.body.get("id") in self.others for e in events)
        assert len(events) == sum(map(len, own.values())) + others, "events that no client sent"
        return [client.ledger.settle(own[client.ledger.owner]) for client in self.clients]

    def check_shown(self, server: ServerProcess) -> None:
        """Check that the service shows exactly the labels, items and rules of the ledgers."""
        place = f"http://127.0.0.1:{server.port}"
        version = len(self.events())
        wait_for(lambda: server.client.get("/info").json()["version"] == version)
        expected = {}
        for client in self.clients:
            for label_id in client.ledger.ids:
                client.check_label(place, label_id, server.client)
                expected[label_id] = client.ledger.expected.label(label_id)
        page = server.client.get("/labels", params={"limit": 1000}).json()
        for label in page["labels"]:
            assert label == expected[label["id"]]
        held = server.client.get("/info").json()["bundle"]["memory"]["version"]  # of a snapshot
        live = {name for name, label in expected.items() if label and label["version"] > held}
        assert {label["id"] for label in page["labels"]} == live
        memory = server.client.get("/info").json()["memory"]
        items = dict(item for c in self.clients for item in c.ledger.expected.items.items())
        assert memory["items"] == len(items)
        assert items_of(server) == items
        rules: dict[str, Form] = {}
        for client in self.clients:
            for rule_id in client.ledger.rule_ids:
                client.check_rule(place, rule_id, server.client)
            rules |= client.ledger.expected.rules
        listed = server.client.get("/rules", params={"limit": 1000}).json()["rules"]
        assert listed == [shown(rules[rule_id]) for rule_id in sorted(rules)]
        stored = memory["base_rows"] + memory["sealed_rows"] + memory["live_rows"]
        rows = sum(client.ledger.expected.rows for client in self.clients)
        assert stored - memory["dead_rows"] == rows, memory

    def prove_equal(self, *servers: ServerProcess) -> None:
        """Check that the servers answer like a new one that has only the bundle and the log."""
        self._wait_for_dates()
        copy = copied_log(self.state, self.folder / f"copy-{self._servers}")
        with self.server(state=copy) as fresh:
            version = len(self.events())
            expected = answers(fresh, version)
            for server in servers:
                assert answers(server, version) == expected

    def _wait_for_dates(self) -> None:
        """Wait until no label or rule starts soon: servers are asked one after the other."""
        held = [client.ledger.expected for client in self.clients]
        forms = [form for h in held for form in (*h.forms.values(), *h.rules.values())]
        starts = (form.get("starts_at", 0) for form in forms)
        soon = max((at for at in starts if at < FUTURE), default=0)
        sleep(max(0, soon - times.now()) / times.SECOND)

    def check_log(self) -> None:
        """Check that `keymatch log --check` finds the log intact."""
        ended = run("service", "log", "--state", self.state, "--check", "--json", "-")
        assert ended.returncode == 0, ended.stderr
        assert orjson.loads(ended.stdout)["last"] == len(self.events())


def at_call(place: str, when: str, count: int, *, sent: str = "KILL") -> Sequence[str]:
    """The program of a service that sends itself a signal before or after this call."""
    return (str(self_killing_service.__file__), sent, place, when, str(count))


def copied_log(state: Path | str, folder: Path) -> Path:
    """Create a state folder with a copy of the log and without sealed segments."""
    open_log(folder).close()
    with Place(state).connected() as source, Place(folder).connected() as target:
        for table in (schema.log_format, schema.events, schema.requests):
            rows = [*map(dict, source.execute(sa.select(table)).mappings())]
            target.execute(table.delete())
            if rows:
                target.execute(table.insert(), rows)
    return folder


def answers(server: ServerProcess, version: int) -> Any:
    """Wait until all full blocks are sealed; return the answers to `QUERIES` and `memory` of /info.

    Its counts of rows and segments are compared too, because approximate answers depend on them.
    `live_bytes` is not: words of writes that were refused stay in a process's memory.
    If the bundle has items, the queries are also sent with five items and with none.
    """
    wait_for(lambda: _settled(server, version))
    asked = {"top_k": 50, "depth": 200, "explain": True, "deadline_ms": 60_000}
    body = {"queries": QUERIES, **asked}
    info = server.client.get("/info").json()
    bodies = [body]
    if "items" in info["bundle"]:
        bodies += [{**body, "items": items} for items in ([*items_of(server)][:5], [])]
    results = []
    for asked in bodies:
        answer = server.client.post("/predict", json=asked)
        assert answer.status_code == 200, answer.text
        assert answer.json()["version"] == version
        results.append(answer.json()["results"])
    del info["memory"]["live_bytes"]
    return results, info["memory"]


def items_of(server: ServerProcess) -> dict[str, str]:
    """All items that a server shows, texts by id; empty for a bundle without an item memory."""
    answer = server.client.get("/items", params={"limit": 1000})
    if answer.status_code == 422:
        assert "no item memory" in answer.text
        return {}
    return {item["id"]: item["text"] for item in answer.json()["items"]}


def _settled(server: ServerProcess, version: int) -> bool:
    info = server.client.get("/info").json()
    return info["version"] == version and info["memory"]["unsealed_segments"] == 0
