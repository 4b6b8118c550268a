"""Three replicas on one PostgreSQL log behind a load balancer, restarted one after the other.

Each replica is stopped as by Kubernetes: SIGTERM comes while the load balancer still sends requests
to it. Clients read and write meanwhile. No request fails, and each acknowledged write is found at
once through every replica.
"""

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import httpx
import orjson
import pytest

from service.child_server import HOST, Server, free_port
from tests.support.commands import program
from tests.support.serving import ServerProcess, server_process
from tests.support.waiting import READY_WITHIN, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROXY = Path(__file__).parents[3] / "deploy/proxy"
REPLICAS = 3
CLIENTS = 4
READS = 3  # after each write
PAUSE_SECONDS = 0.02  # of each client between two writes, since replicas start meanwhile
# The test ends `leave_seconds` by a second signal, and no request is refused on a busy machine.
SETTINGS = """
[server]
leave_seconds = 3_600
[engine]
threads = 1
queue_target_ms = 60_000
queue_interval_ms = 60_000
write_deadline_ms = 120_000
"""


class Balancer(Protocol):
    """Leads clients to the replicas that are in `ports`."""

    def lead_to(self, ports: list[int]) -> None:
        """Use these replicas from now on; returns when new requests go to no other one."""

    def port_for(self, client: int) -> int:
        """Return the port that a client connects to."""

    keeps: bool  # whether clients keep their connections


class Nginx:
    """nginx with the example configuration. A removed replica is in no worker's upstream any more.

    Clients open a connection per request, because nginx closes idle ones when it reloads.
    """

    keeps = False

    def __init__(self, folder: Path, ports: list[int]) -> None:
        nginx = program("nginx", package="nginx")
        shutil.copy(PROXY / "nginx.conf", folder)
        self.port, self._folder = free_port(), folder
        (folder / "listen.conf").write_text(f"listen {HOST}:{self.port};\n")
        self._write(ports)
        options = f"daemon off; pid {folder}/pid; error_log {folder}/nginx.log;"
        command = [nginx, "-e", f"{folder}/nginx.log", "-c", f"{folder}/nginx.conf", "-g", options]
        self.server = Server(command, log=folder / "nginx.output", port=self.port)
        wait_for(self._workers)
        self.server.wait_ready()

    def lead_to(self, ports: list[int]) -> None:
        before = self._workers()
        self._write(ports)
        self.server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: (now := self._workers()) and not now & before)

    def port_for(self, client: int) -> int:
        return self.port

    def _write(self, ports: list[int]) -> None:
        lines = [f"server {HOST}:{port};\n" for port in ports]
        (self._folder / "upstream.conf").write_text("".join(lines))

    def _workers(self) -> set[int]:
        """Return the process ids of old and new workers."""
        pid = self.server.pid
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


class ClusterService:
    """A Kubernetes Service: new connections go to its replicas, and open ones are left alone."""

    keeps = True

    def __init__(self, ports: list[int], requests_of_all: Callable[[], None]) -> None:
        self._ports, self._requests_of_all = ports, requests_of_all
        self._turns = [count(client) for client in range(CLIENTS)]

    def lead_to(self, ports: list[int]) -> None:
        self._ports = ports
        # A replica that leaves ends a connection with its next answer, so its clients have gone.
        self._requests_of_all()

    def port_for(self, client: int) -> int:
        ports = self._ports
        return ports[next(self._turns[client]) % len(ports)]


class Clients:
    """Threads that write and read until the end of the test."""

    def __init__(self) -> None:
        self.balancer: Balancer
        self.failures: list[str] = []
        self.writes: dict[str, int] = {}  # acknowledged: the label's id -> its version
        self.answered = [0] * CLIENTS
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(client,)) for client in range(CLIENTS)
        ]

    @contextmanager
    def running(self, balancer: Balancer) -> Iterator[None]:
        self.balancer = balancer
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def wait_for_requests(self, number: int = 10) -> None:
        """Wait until each client got so many further answers."""
        goals = [answered + number for answered in self.answered]
        wait_for(
            lambda: self.failures or all(a >= g for a, g in zip(self.answered, goals, strict=True))
        )
        assert self.failures == []

    def _run(self, client: int) -> None:
        connection: HTTPConnection | None = None

        def ask(path: str, body: Any) -> Any:
            nonlocal connection
            if connection is None:
                port = self.balancer.port_for(client)
                connection = HTTPConnection(HOST, port, timeout=READY_WITHIN)
            headers = {"content-type": "application/json"}
            connection.request("POST", path, orjson.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.will_close or not self.balancer.keeps:
                connection.close()
                connection = None
            assert answer.status == 200, f"{path}: {answer.status} {content!r}"
            self.answered[client] += 1
            return orjson.loads(content)

        try:
            for number in count():
                if self._stop.wait(PAUSE_SECONDS):
                    break
                name = f"client {client} write {number}"
                label = {"id": name, "text": name, "metadata": {"write": name}}
                version = ask("/labels", {"labels": [label]})["version"]
                self.writes[name] = version
                for _ in range(READS):
                    found(ask("/predict", question(name, version)), name)
        except Exception as error:
            self.failures.append(repr(error))
        finally:
            if connection is not None:
                connection.close()


def question(name: str, version: int) -> dict[str, Any]:
    """Return a request that only this label can answer."""
    this = {"all": [{"field": "write", "eq": name}]}
    return {"queries": [name], "filter": this, "min_version": version, "deadline_ms": 60_000}


def found(answer: Any, name: str) -> None:
    assert [one["id"] for one in answer["results"][0]["keywords"]] == [name], answer


@pytest.mark.parametrize("kind", ["nginx", "service"])
def test_a_rolling_restart_loses_no_request(
    kind: str, tiny_bundle_folder: Path, postgres_url: str, tmp_path: Path
) -> None:
    config = tmp_path / "keymatch.toml"
    config.write_text(SETTINGS)
    logs = (tmp_path / f"log {number}" for number in count())
    clients = Clients()
    with ExitStack() as stack:

        def start() -> ServerProcess:
            options = ("--config", str(config), "--no-access-log")
            server = server_process(tiny_bundle_folder, postgres_url, next(logs), *options)
            return stack.enter_context(server)

        replicas = [start() for _ in range(REPLICAS)]
        ports = [replica.port for replica in replicas]
        balancer: Balancer
        if kind == "nginx":
            balancer = nginx = Nginx(tmp_path, ports)
            stack.callback(nginx.server.stop)
        else:
            balancer = ClusterService(ports, clients.wait_for_requests)
        with clients.running(balancer):
            for place in range(REPLICAS):
                clients.wait_for_requests()
                old = replicas[place]
                old.process.send_signal(signal.SIGTERM)
                wait_for(lambda old=old: ready(old) == 503)
                clients.wait_for_requests()  # the load balancer does not know it yet
                balancer.lead_to([one.port for one in replicas if one is not old])
                old.process.send_signal(signal.SIGINT)  # ends `leave_seconds`
                assert old.process.wait(READY_WITHIN) == 0
                assert not old.logged("defect")
                clients.wait_for_requests()
                replicas[place] = start()
                balancer.lead_to([one.port for one in replicas])
            clients.wait_for_requests()
        assert clients.failures == []
        name, version = max(clients.writes.items(), key=lambda write: write[1])
        for replica in replicas:
            found(replica.client.post("/predict", json=question(name, version)).json(), name)
            assert labels_of(replica) == clients.writes.keys()
            # Clients of a Service keep the connections that they have.
            assert balancer.keeps or answered(replica) > CLIENTS


def ready(server: ServerProcess) -> int:
    """Return the status of the probe, on a new connection."""
    return httpx.get(f"{server.url}/health/ready", timeout=60).status_code


def labels_of(server: ServerProcess) -> set[str]:
    """Return the ids of all posted labels."""
    ids, after = set[str](), {}
    while True:
        page = server.client.get("/labels", params=after).json()
        ids |= {label["id"] for label in page["labels"]}
        if page["next"] is None:
            return ids
        after = {"after": page["next"]}


def answered(server: ServerProcess) -> float:
    """Return how many predictions a replica has answered."""
    start = 'keymatch_requests_total{route="/predict",status="200"} '
    lines = server.client.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))
