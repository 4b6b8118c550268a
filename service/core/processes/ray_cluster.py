"""Ray clusters: how a process joins one, and runs calls of a function as tasks of its machines.

Ray is an extra (`cluster`). Nothing of it is imported before a process joins a cluster.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from service.core.errors import CommandFailed, InvalidConfig, KeymatchError, MissingExtra
from service.core.processes.own_code import ROOT
from service.core.processes.resources import available_cores

AUTO = "auto"
NAMESPACE = "keymatch"
HEAD_SECONDS = 5.0  # for a connection to the head
RETRIES = 3  # how often a call begins again because its worker process or machine died
_CALLS_A_CORE = 2  # one that runs, and one that waits; an autoscaler sees those that wait
_POLL_SECONDS = 1.0


def require_ray() -> None:
    """Raise `MissingExtra` if Ray is not installed."""
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise MissingExtra("ray", extra="cluster")


def require_head(address: str) -> None:
    """Raise `InvalidConfig` if nothing listens at the address: Ray would try for minutes."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=HEAD_SECONDS).close()
    except (ValueError, OverflowError) as error:
        raise InvalidConfig(
            f"--cluster {address!r} is neither {AUTO!r} nor HOST:PORT of a Ray head"
        ) from error
    except OSError as error:
        raise InvalidConfig(
            f"no Ray head answers at {address}: {error.strerror or error}"
        ) from error


def join(address: str) -> None:
    """Connect this process to the cluster at `address`; `AUTO` starts one on this machine.

    The latter listens on loopback addresses alone, and has a token of its own unless the
    environment says otherwise. Raises `InvalidConfig` if there is no cluster.
    """
    own = address == AUTO
    if own and "ray" not in sys.modules:
        _keep_to_itself(os.environ)
    import ray
    from ray.job_config import JobConfig

    try:
        ray.init(
            address="local" if own else address,
            num_cpus=available_cores() if own else None,
            namespace=NAMESPACE,
            job_config=JobConfig(_py_driver_sys_path=_FirstOfPath([str(ROOT)])),
            include_dashboard=False if own else None,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    except ConnectionError as error:  # of Ray, with no cause: the head itself has answered
        raise InvalidConfig(
            f"this machine cannot join the Ray cluster at {address}: it needs a node of its own"
            f" (ray start --address={address}) and, if the cluster has a token,"
            " RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        ) from error
    except Exception as error:  # Ray raises OSError, ValueError, RuntimeError, ...
        what = "Ray cannot be started here" if own else f"no Ray cluster is at {address}"
        raise InvalidConfig(f"{what}: {error}") from error


class _FirstOfPath(list[str]):
    """Folders that Ray's workers put on Python's path, which search the last of them first.

    Ray adds the working directory, which may have folders with the names of our packages.
    """

    def extend(self, others: Iterable[str]) -> None:
        """Add folders that are searched later."""
        self[:0] = others


def _keep_to_itself(environment: MutableMapping[str, str]) -> None:
    """Set what Ray reads, when it is imported, about addresses and tokens.

    Without a token, Ray would write one to the home folder, where other users may read it.
    """
    # Not only on Windows and OSX, where this is the default: use 127.0.0.1.
    environment.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if environment.setdefault("RAY_AUTH_MODE", "token") == "token":
        if "RAY_AUTH_TOKEN_PATH" not in environment:
            environment.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def machines() -> int:
    """Return the number of machines of the cluster that this process has joined."""
    import ray

    return len({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]})


@contextmanager
def joined(address: str | None) -> Iterator[Cluster | None]:
    """Join the cluster at `address` for the block, or yield None without an address.

    A cluster that was started for the block ends with it, and so do its tasks on any other one.
    Raises `MissingExtra`, and `InvalidConfig` if no cluster is at the address.
    """
    if address is None:
        yield None
        return
    require_ray()
    require_head(address)
    try:
        with _signals_kept():
            join(address)
        yield Cluster()
    finally:
        import ray

        with _signals_kept():
            ray.shutdown()


class Cluster:
    """The cluster that this process has joined, as a place to run calls."""

    def results(
        self, function: Callable[..., Any], calls: Iterable[Sequence[Any]], *, cores: int = 1
    ) -> Iterator[Any]:
        """Yield `function(*call)` of each call, in the order in which they finish.

        The function is one of a module, or a `partial` of one. Each call occupies so many `cores`
        of one machine, or all if it has fewer. `calls` are taken as machines become free. If a
        worker dies, Ray makes its call again.

        Raises `CommandFailed` with the message of a call's `KeymatchError` or `OSError`, and if a
        call's worker died `RETRIES` more times.
        """
        import ray

        inner = function.func if isinstance(function, partial) else function
        task = ray.remote(_answer).options(
            name=inner.__name__, num_cpus=min(cores, _most_cores()), max_retries=RETRIES
        )
        left, pending = iter(calls), set[Any]()
        while True:
            most = max(1, _CALLS_A_CORE * _all_cores() // cores)
            free = max(0, most - len(pending))
            pending.update(task.remote(function, *call) for call in islice(left, free))
            if not pending:
                return
            done, _ = ray.wait(list(pending), timeout=_POLL_SECONDS)
            for reference in done:
                pending.remove(reference)
                yield _result(reference)


class _Refusal(NamedTuple):
    """The message of the error that a call raised; Ray cannot transport every exception."""

    message: str


def _answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function on a machine of the cluster."""
    import ray.util

    try:
        return function(*arguments)
    except KeymatchError as error:
        return _Refusal(str(error))
    except OSError as error:
        if error.strerror is None:
            raise
        named = "" if error.filename is None else f"{error.filename}: "
        return _Refusal(f"{named}{error.strerror}, on {ray.util.get_node_ip_address()}")


def _result(reference: Any) -> Any:
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        answer = ray.get(reference)
    except RayTaskError:  # a mistake in the program
        raise
    except RayError as error:
        said = str(error).strip().splitlines()[0]
        raise CommandFailed(f"a task of the cluster was lost {RETRIES + 1} times: {said}") from None
    if isinstance(answer, _Refusal):
        raise CommandFailed(answer.message)
    return answer


def _all_cores() -> int:
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _most_cores() -> int:
    """Return the cores of the machine that has most of them."""
    import ray

    cores = (int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
    return max(1, *cores)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore this process's handlers of signals after the block: Ray installs its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
