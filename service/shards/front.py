"""Asks the shards of a memory, from a front: one question to all of them, and one merged answer.

Each question goes to one replica of every shard. If it does not answer soon, another replica of the
same shard is asked as well, and the first answer counts. A replica that accepts no connection is
left alone for a moment.
"""

from __future__ import annotations

import math
import select
import socket
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from time import monotonic, time
from typing import Any, NamedTuple, TypeVar

import numpy as np

from service.core.errors import ShardsUnavailable
from service.core.memory.shards import (
    FoundRows,
    KeySearch,
    ShardStatus,
    search_all,
)
from service.core.types import Halves, Rows
from service.shards import messages
from service.shards.messages import (
    Answer,
    Ask,
    Found,
    Hello,
    Keys,
    Question,
    Refused,
    Status,
    Welcome,
)

CONNECT_SECONDS = 1.0  # for a connection, which takes less than a millisecond if nothing is wrong
HEDGE_SECONDS = 0.05  # after which another replica is asked as well
AVOIDED_SECONDS = 0.5  # a replica to which no connection came about in time
OLD_SECONDS = 15.0  # an age of places at which nobody looks after the shards

Address = tuple[str, int]
Places = Sequence[Sequence[Address]]  # of each shard, the addresses of its replicas

_Kind = TypeVar("_Kind", Found, Keys, Status)


@dataclass(frozen=True, kw_only=True)
class KnownPlaces:
    """The replicas of each shard that are known to answer."""

    places: Places = ()
    error: str = ""
    written: float = 0.0  # Unix time

    @property
    def complete(self) -> bool:
        """Whether each shard has a replica."""
        return len(self.places) > 0 and all(self.places)

    @property
    def attended(self) -> bool:
        """Whether somebody looks after the shards, so that the places are new."""
        return time() - self.written < OLD_SECONDS


class SocketShards:
    """The shards of one bundle. Any thread may use it."""

    def __init__(
        self,
        known: Callable[[], KnownPlaces],
        *,
        bundle: str,
        log: str,
        dimension: int,
        patience: float,
        partial: bool = False,
    ) -> None:
        """Ask the replicas that are `known` before each question.

        They must serve the `bundle` with this fingerprint, with keys of `dimension`, and the `log`
        with this id. An answer that takes longer than `patience`, in seconds, counts as missing. If
        answers may be `partial`, those of the other shards are merged.
        """
        self._known, self._bundle, self._log = known, bundle, log
        self._dimension, self._patience, self._partial = dimension, patience, partial
        self._replicas: dict[tuple[int, int, Address], _Replica] = {}
        self._turn = count()
        weakref.finalize(self, _disconnect, self._replicas)

    def search(self, wanted: KeySearch) -> FoundRows:
        """Find the nearest rows over all shards; raises `ShardsUnavailable`."""
        return search_all(wanted, len(self._known().places), self._search)

    def _search(self, wanted: KeySearch) -> list[FoundRows]:
        """Return what each shard found that has answered; if one has not, it is `partial`."""
        answers = self._ask(messages.question_of(wanted), Found)
        found = [
            messages.found_of(answer, count=wanted.count or wanted.depth)
            for answer in answers
            if answer is not None
        ]
        return [one._replace(partial=len(found) < len(answers)) for one in found]

    def vectors(self, version: int, rows: Rows) -> Halves:
        """Return the keys [n, d] of `rows` [n]; raises `ShardsUnavailable`.

        If answers may be partial, keys of a shard that does not answer are 0.
        """
        asked = messages.Vectors(version=version, rows=rows.astype(np.int64).tobytes())
        vectors = np.zeros((len(rows), self._dimension), np.float16)
        for answer in self._ask(asked, Keys):
            if answer is None:
                continue
            places = np.frombuffer(answer.places, np.int64)
            keys = np.frombuffer(answer.keys, np.float16)
            vectors[places] = keys.reshape(len(places), self._dimension)
        return vectors

    @property
    def attended(self) -> bool:
        """Whether somebody starts shards again that die."""
        return self._known().attended

    @property
    def replicas(self) -> int:
        """The number of processes that are known to hold a shard."""
        return sum(map(len, self._known().places))

    def status(self) -> list[ShardStatus | None]:
        """Return what each shard holds, None for those that do not answer."""
        return [
            ShardStatus(version=answer.version, rows=answer.rows, built=answer.built)
            if answer is not None
            else None
            for answer in self._answers(Ask(), Status)[0]
        ]

    def _ask(self, question: Question, kind: type[_Kind]) -> list[_Kind | None]:
        """Return the answer of each shard, None if it is missing and answers may be partial."""
        answers, why = self._answers(question, kind)
        missing = answers.count(None)
        if missing and (missing == len(answers) or not self._partial):
            raise ShardsUnavailable(why)
        return answers

    def _answers(self, question: Question, kind: type[_Kind]) -> tuple[list[_Kind | None], str]:
        """Return the answer of each shard, or None, and a sentence about those that are missing."""
        turn = next(self._turn)
        asking = _Asking(
            len(self._known().places),
            lambda index: self._in_turn(turn, index),
            messages.frame(question),
            deadline=monotonic() + self._patience,
        )
        try:
            asking.wait()
        finally:
            asking.close()
        answers = [answer if isinstance(answer, kind) else None for answer in asking.answers]
        return answers, asking.missing()

    def _in_turn(self, turn: int, index: int) -> list[_Replica]:
        """Return the replicas of a shard that are known now, in the order in which to ask them."""
        places = self._known().places
        first = turn % max(1, len(places[index]))
        replicas = []
        for address in (*places[index][first:], *places[index][:first]):
            key = index, len(places), address
            if key not in self._replicas:
                hello = Hello(bundle=self._bundle, log=self._log, index=index, count=len(places))
                self._replicas.setdefault(key, _Replica(address, hello, self._patience))
            replicas.append(self._replicas[key])
        return replicas


def _disconnect(replicas: Mapping[Any, _Replica]) -> None:
    for replica in replicas.values():
        replica.disconnect()


class _Sent(NamedTuple):
    """A question that was sent to a replica.

    Over a connection that is not `reused`, it follows a `Hello`, and the answer a `Welcome`.
    """

    replica: _Replica
    connection: socket.socket
    reused: bool


class _Replica:
    """One replica of a shard, and its idle connections."""

    def __init__(self, address: Address, hello: Hello, patience: float) -> None:
        self._address, self._hello, self._patience = address, messages.frame(hello), patience
        self._idle: deque[socket.socket] = deque()
        self._avoided_until = 0.0

    def send(self, question: bytes, *, anew: bool = False) -> _Sent | None:
        """Send a question; returns None if the replica cannot be reached.

        If it is sent `anew`, over a new connection, all idle ones are closed.
        """
        if anew:
            self.disconnect()
        while (idle := self._take()) is not None:
            try:
                idle.sendall(question)
                return _Sent(self, idle, reused=True)
            except OSError:
                idle.close()
        if monotonic() < self._avoided_until:
            return None
        try:
            opened = socket.create_connection(self._address, timeout=CONNECT_SECONDS)
        except TimeoutError:
            self.avoid()
            return None
        except OSError:  # known at once, so nothing is lost by trying again
            return None
        try:
            opened.settimeout(self._patience)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.sendall(self._hello + question)
        except OSError:
            opened.close()
            return None
        return _Sent(self, opened, reused=False)

    def avoid(self) -> None:
        """Leave the replica alone for a moment."""
        self._avoided_until = monotonic() + AVOIDED_SECONDS

    def keep(self, connection: socket.socket) -> None:
        """Keep a connection whose question was answered."""
        self._idle.append(connection)

    def disconnect(self) -> None:
        """Close the idle connections."""
        while (idle := self._take()) is not None:
            idle.close()

    def _take(self) -> socket.socket | None:
        """Take an idle connection; other threads may take one at the same time."""
        try:
            return self._idle.pop()
        except IndexError:
            return None


class _Asking:
    """One question to all shards; `answers` has None for those that have not answered."""

    def __init__(
        self,
        shards: int,
        known: Callable[[int], Sequence[_Replica]],
        question: bytes,
        *,
        deadline: float,
    ) -> None:
        """Ask a replica of each shard; `known` returns those of one shard, best first.

        It is called again for each further replica, because one may have come meanwhile.
        """
        self._known, self._question, self._deadline = known, question, deadline
        self._causes: dict[int, str] = {}  # by shard: why a replica has not answered
        self._tried: list[list[_Replica]] = [[] for _ in range(shards)]
        self._open: dict[int, tuple[int, _Sent]] = {}  # by file descriptor, with the shard
        self._poll = select.poll()
        self.answers: list[Answer | None] = [None] * shards
        for index in range(shards):
            self._ask_next(index)

    def wait(self) -> None:
        """Wait for all answers, until the deadline."""
        hedge = monotonic() + HEDGE_SECONDS
        while self._open and (now := monotonic()) < self._deadline:
            for descriptor, _ in self._poll.poll(1000 * (min(hedge, self._deadline) - now)):
                if descriptor in self._open:
                    self._receive(descriptor)
            if monotonic() >= hedge:
                hedge = math.inf
                for index in {index for index, _ in self._open.values()}:
                    self._ask_next(index)

    def close(self) -> None:
        """Close the connections whose answers did not come in time."""
        for descriptor, (index, _) in list(self._open.items()):
            self._causes.setdefault(index, f"shard {index} is too slow")
            self._forget(descriptor).connection.close()

    def missing(self) -> str:
        """Say how many shards have not answered, and why the first of them has not."""
        missing = self.answers.count(None)
        said = f"{missing} of {len(self.answers)} shards do not answer"
        if not missing:
            return said
        first = self.answers.index(None)
        lost = f"none of {len(self._tried[first])} known replicas of shard {first} is there"
        return f"{said}: {self._causes.get(first, lost)}"

    def _ask_next(self, index: int, again: _Replica | None = None) -> None:
        """Ask the shard's next replica that can be reached, if any; first one `again`."""
        sent = None if again is None else again.send(self._question, anew=True)
        while sent is None and (replica := self._untried(index)) is not None:
            sent = replica.send(self._question)
        if sent is not None:
            descriptor = sent.connection.fileno()
            self._open[descriptor] = index, sent
            self._poll.register(descriptor, select.POLLIN)

    def _untried(self, index: int) -> _Replica | None:
        """Return the shard's next replica that this question has not been sent to, if any."""
        tried = self._tried[index]
        for replica in self._known(index):
            if replica not in tried:
                tried.append(replica)
                return replica
        return None

    def _receive(self, descriptor: int) -> None:
        index, sent = self._open[descriptor]
        try:
            answer = messages.receive_answer(sent.connection)
        except (OSError, ValueError):
            self._forget(descriptor).connection.close()
            self._ask_next(index, sent.replica if sent.reused else None)
            return
        if isinstance(answer, Welcome):  # the answer itself follows
            return
        self._forget(descriptor)
        if isinstance(answer, Refused):
            self._causes[index] = answer.message
            if answer.reason == "other":
                sent.replica.avoid()
                sent.connection.close()
            else:
                sent.replica.keep(sent.connection)
            self._ask_next(index)
            return
        sent.replica.keep(sent.connection)
        self.answers[index] = answer
        for other in [one for one, (of, _) in self._open.items() if of == index]:
            self._forget(other).connection.close()  # its answer would come too late

    def _forget(self, descriptor: int) -> _Sent:
        self._poll.unregister(descriptor)
        return self._open.pop(descriptor)[1]
