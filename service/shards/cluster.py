"""Shards as Ray actors: Ray chooses their machines, and starts them again if they die.

Questions do not go through Ray, because an actor call takes as long as a search. The actors are
detached: a front that restarts finds them at work, and fronts on several machines share them. Their
names hold what they were made with: fronts with another bundle, log, version or settings get actors
of their own. An actor ends if no front has been connected for `IDLE_SECONDS`.

Ray runs in a child process of the launcher. It ends its drivers if the head of the cluster is lost
for long; fronts and shards then still know each other.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import orjson

from service.core.errors import InvalidConfig, KeymatchError
from service.core.index.key_parts import KeyShare
from service.core.label_log import open_log
from service.core.processes.own_code import own_module
from service.core.processes.ray_cluster import (
    AUTO,
    NAMESPACE,
    join,
    machines,
    require_head,
    require_ray,
)
from service.settings import EngineSettings
from service.shards.front import Address, KnownPlaces
from service.shards.messages import hello_of, name_of
from service.shards.places import PlacesFolder
from service.telemetry import configure_logs

POLL_SECONDS = 0.5
PAUSE_SECONDS = 2.0  # before a child or an actor that failed is started again
IDLE_SECONDS = 600.0
STOP_SECONDS = 10.0
# What a shard asks of Ray. With 0, Ray would also use machines that offer no cores (heads, fronts).
CORES = 0.001
# Ray gives its workers a low priority, so any other work on the machine would delay searches.
ENVIRONMENT = {"env_vars": {"RAY_worker_niceness": "0"}}

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """How the memory is divided: into `shards` with `replicas` each, on the cluster at `address`.

    The address is that of a Ray head, or `AUTO` for a cluster on this machine alone.
    """

    shards: int
    replicas: int = 1
    address: str = AUTO


class ClusterProcess:
    """The child process that places the shards; if it ends, another one is started."""

    def __init__(
        self,
        config: ClusterConfig,
        folder: Path,
        *,
        state: Path | str,
        settings: EngineSettings,
    ) -> None:
        """Start the child, which announces places in `folder`.

        Raises `MissingExtra`, and `InvalidConfig` if nothing listens at the address.
        """
        require_ray()
        require_head(config.address)
        job = {
            "config": asdict(config),
            "folder": str(folder),
            "state": str(state if isinstance(state, str) else state.absolute()),
            "settings": asdict(settings),
        }
        self._job = orjson.dumps(job, default=str)
        self._closing = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the child. If it has started a cluster, the cluster ends with it."""
        self._closing.set()
        late = monotonic() + STOP_SECONDS
        while self._thread.is_alive():
            child = self._child  # the thread may just be starting another one
            if child is not None and child.stdin is not None:
                child.stdin.close()
                if monotonic() > late:
                    child.kill()
            self._thread.join(POLL_SECONDS)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._child = child = subprocess.Popen(
                own_module("service.shards.cluster"),
                stdin=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the launcher, which still needs shards
            )
            assert child.stdin is not None
            try:
                child.stdin.write(self._job + b"\n")
                child.stdin.flush()
            except (OSError, ValueError):
                pass  # it has ended already, or is to end
            status = child.wait()
            if not self._closing.wait(PAUSE_SECONDS):
                log.error("the cluster's child process has ended", extra={"status": status})


class ShardActor:
    """One replica of a shard, in a process of its own."""

    def __init__(
        self, bundle: str, state: str, share: tuple[int, int], settings: EngineSettings
    ) -> None:
        """Open the shard. What it raises ends the actor for good."""
        import ray
        import ray.util

        from service.shards.shard import Shard

        configure_logs(access=False)
        index, count = share
        try:
            self._shard = Shard(
                Path(bundle),
                state if "://" in state else Path(state),
                share=KeyShare(index=index, count=count),
                settings=settings,
                host=ray.util.get_node_ip_address(),
            )
        except KeymatchError as error:
            raise RuntimeError(f"{ERROR}{error}{ERROR}") from None
        self._own = ray.get_runtime_context().current_actor
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def address(self) -> Address:
        """Return where the shard answers, with the secret that only Ray's processes learn."""
        return self._shard.address

    def _watch(self) -> None:
        """End this process if the shard cannot follow the log any more, or nobody asks it."""
        import ray

        while self._shard.alive:
            sleep(1.0)
            if self._shard.idle_seconds() > IDLE_SECONDS:
                ray.kill(self._own)
        os._exit(1)  # Ray starts it again


ERROR = "\x1f"  # before and after the message of a `KeymatchError`, in Ray's report


class _Replica:
    """One replica of a shard, as the driver sees it."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self._name, self._arguments = name, arguments
        self._actor: Any = None
        self._asked: Any = None
        self._start_at = 0.0
        self.address: Address | None = None
        self.error = ""

    def look(self) -> None:
        """Start the actor unless it is there, and find out where it answers."""
        import ray
        from ray.exceptions import ActorDiedError, RayError

        if self._actor is None:
            if monotonic() < self._start_at:
                return
            self._actor = (
                ray.remote(ShardActor)
                .options(
                    name=self._name,
                    namespace=NAMESPACE,
                    lifetime="detached",
                    get_if_exists=True,
                    max_restarts=-1,
                    num_cpus=CORES,
                    max_concurrency=2,
                    scheduling_strategy="SPREAD",
                    runtime_env=ENVIRONMENT,
                )
                .remote(*self._arguments)
            )
        if self._asked is None:
            self._asked = self._actor.address.remote()
        ready, _ = ray.wait([self._asked], timeout=0)
        if not ready:
            return
        asked, self._asked = self._asked, None
        try:
            self.address, self.error = Address(*ray.get(asked)), ""
        except ActorDiedError as error:  # for good: it could not open the shard
            self.address, self._actor = None, None
            self.error = _message_in(str(error))
            self._start_at = monotonic() + PAUSE_SECONDS
        except RayError:  # it is being started again
            self.address = None


def _message_in(report: str) -> str:
    """Return the message of the error behind Ray's report, or the report's last line."""
    parts = report.split(ERROR)  # Ray may have stripped the second one: it counts as white space
    return parts[1] if len(parts) > 1 else report.strip().splitlines()[-1]


class Cluster:
    """Keeps the wanted shards alive, and announces where they answer."""

    def __init__(
        self,
        config: ClusterConfig,
        folder: PlacesFolder,
        *,
        state: str,
        settings: EngineSettings,
    ) -> None:
        """Join the cluster, or start one. Raises `InvalidConfig` if there is none at the address.

        A log that cannot be opened raises `LogError`.
        """

        self._config, self._folder, self._state, self._settings = config, folder, state, settings
        place = state if "://" in state else Path(state)
        with closing(open_log(place)) as label_log:
            self._log = label_log.id
        join(config.address)
        count = machines()
        if count > 1 and "://" not in state:
            raise InvalidConfig(
                f"the cluster has {count} machines, and a label log in a folder is for one:"
                " use --state postgresql://..."
            )
        self._replicas: dict[str, list[list[_Replica]]] = {}

    def look(self) -> None:
        """Look once after all shards that are wanted now."""
        import ray

        ray.nodes()  # waits while the head is lost, so that places become old
        wanted = dict(self._folder.wanted())
        for fingerprint in self._replicas.keys() - wanted.keys():
            del self._replicas[fingerprint]
        for fingerprint, bundle in wanted.items():
            if fingerprint not in self._replicas:
                self._replicas[fingerprint] = self._all_replicas(fingerprint, bundle)
            shards = self._replicas[fingerprint]
            for replica in (one for of_shard in shards for one in of_shard):
                replica.look()
            known = KnownPlaces(
                places=[
                    [one.address for one in of_shard if one.address is not None]
                    for of_shard in shards
                ],
                error=max(one.error for of_shard in shards for one in of_shard),
            )
            self._folder.write(fingerprint, known)

    def _all_replicas(self, fingerprint: str, bundle: Path) -> list[list[_Replica]]:
        count = self._config.shards
        hello = partial(hello_of, self._settings, bundle=fingerprint, log=self._log)
        return [
            [
                _Replica(
                    f"{name_of(hello(index=index, count=count))}-{replica}",
                    (str(bundle), self._state, (index, count), self._settings),
                )
                for replica in range(self._config.replicas)
            ]
            for index in range(count)
        ]


def main() -> None:
    """Look after the shards of a service until stdin, which is the job at first, ends."""
    configure_logs(access=False)
    # It may be sent to all processes of a service. Ray's processes must not inherit this.
    signal.signal(signal.SIGTERM, lambda *_: None)
    job = orjson.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    folder, segments = PlacesFolder(Path(job["folder"])), job["settings"].pop("segments")
    settings = replace(
        EngineSettings(**job["settings"]), segments=None if segments is None else Path(segments)
    )
    try:
        config = ClusterConfig(**job["config"])
        cluster = Cluster(config, folder, state=job["state"], settings=settings)
    except KeymatchError as error:
        folder.fail(str(error))
        log.error("the shards cannot be placed", extra={"cause": str(error)})
        sys.exit(1)
    folder.fail("")
    while True:
        cluster.look()
        sleep(POLL_SECONDS)


def _end_with_parent() -> None:
    while sys.stdin.read(1):
        pass
    late = threading.Timer(STOP_SECONDS, os._exit, [1])  # Ray waits long for a head that is silent
    late.daemon = True
    late.start()
    import ray  # not earlier: `join` sets what Ray reads when it is imported

    ray.shutdown()
    os._exit(0)


if __name__ == "__main__":
    # Ray's workers import the actor's class by the name of its module.
    from service.shards.cluster import main as run

    run()
