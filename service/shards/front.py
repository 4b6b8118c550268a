"""Asks the shards of a memory, from a front: one question to all of them, and one merged answer.

Each question goes to one replica of every shard. If it does not answer soon, another replica of the
same shard is asked as well, and the first answer counts. A replica that accepts no connection, or
answers wrongly, is left alone for a moment.

No connection is waited for alone: those of a question are opened, written and read as they become
ready, until one deadline for all. So a shard that sends its answer byte by byte delays nobody.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial as partly
from itertools import count
from time import monotonic, time
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from service.core.errors import ShardsUnavailable
from service.core.memory.shards import (
    FoundRows,
    KeySearch,
    ShardStatus,
    search_all,
)
from service.core.types import Halves, Rows
from service.settings import EngineSettings
from service.shards import messages
from service.shards.messages import (
    Answer,
    Ask,
    Question,
    Refused,
    Vectors,
    Welcome,
    WrongAnswer,
)

CONNECT_SECONDS = 1.0  # for a connection, which takes less than a millisecond if nothing is wrong
HEDGE_SECONDS = 0.05  # after which another replica is asked as well
LOOK_SECONDS = 0.25  # between later looks after connections that do not come about
AVOIDED_SECONDS = 0.5  # a replica that accepts no connection in time, or answers wrongly
OLD_SECONDS = 15.0  # an age of places at which nobody looks after the shards

log = logging.getLogger("keymatch")


class Address(NamedTuple):
    """Where a replica answers, and the secret that its `Hello` needs."""

    host: str
    port: int
    secret: str


Places = Sequence[Sequence[Address]]  # of each shard, the addresses of its replicas

_Value = TypeVar("_Value")


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
        settings: EngineSettings,
    ) -> None:
        """Ask the replicas that are `known` before each question.

        They must serve the `bundle` with this fingerprint, with keys of `dimension`, and the `log`
        with this id, and be made with the same `settings`. An answer that takes longer than
        `shard_timeout_ms` counts as missing. If answers may be partial (`partial_answers`), those
        of the other shards are merged.
        """
        self._known, self._dimension = known, dimension
        self._hello = partly(messages.hello_of, settings, bundle=bundle, log=log)
        self._patience, self._partial = settings.shard_timeout_ms / 1000, settings.partial_answers
        self._replicas: dict[tuple[int, int, Address], _Replica] = {}
        self._turn = count()
        weakref.finalize(self, _disconnect, self._replicas)

    def search(self, wanted: KeySearch) -> FoundRows:
        """Find the nearest rows over all shards; raises `ShardsUnavailable`."""
        return search_all(wanted, len(self._known().places), self._search)

    def _search(self, wanted: KeySearch) -> list[FoundRows]:
        """Return what each shard found that has answered; if one has not, it is `partial`."""
        asked = messages.question_of(wanted)
        answers = self._ask(asked, partly(messages.found_of, wanted=wanted))
        found = [answer for answer in answers if answer is not None]
        return [one._replace(partial=len(found) < len(answers)) for one in found]

    def vectors(self, version: int, rows: Rows) -> Halves:
        """Return the keys [n, d] of `rows` [n]; raises `ShardsUnavailable`.

        If answers may be partial, keys of a shard that does not answer are 0.
        """
        asked = Vectors(version=version, rows=rows.astype(np.int64).tobytes())
        read = partly(messages.found_keys_of, asked=len(rows), dimension=self._dimension)
        vectors = np.zeros((len(rows), self._dimension), np.float16)
        for answer in self._ask(asked, read):
            if answer is not None:
                places, keys = answer
                vectors[places] = keys
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
        return self._answers(Ask(), messages.status_of)[0]

    def _ask(self, question: Question, read: Callable[[Answer], _Value]) -> list[_Value | None]:
        """Return the answer of each shard, None if it is missing and answers may be partial."""
        answers, why = self._answers(question, read)
        missing = sum(answer is None for answer in answers)
        if missing and (missing == len(answers) or not self._partial):
            raise ShardsUnavailable(why)
        return answers

    def _answers(
        self, question: Question, read: Callable[[Answer], _Value]
    ) -> tuple[list[_Value | None], str]:
        """Return the answer of each shard, or None, and a sentence about those that are missing."""
        turn = next(self._turn)
        asking = _Asking(
            len(self._known().places),
            lambda index: self._in_turn(turn, index),
            messages.frame(question),
            read,
            deadline=monotonic() + self._patience,
        )
        try:
            asking.wait()
        finally:
            asking.close()
        return asking.answers, asking.missing()

    def _in_turn(self, turn: int, index: int) -> list[_Replica]:
        """Return the replicas of a shard that are known now, in the order in which to ask them."""
        places = self._known().places
        first = turn % max(1, len(places[index]))
        replicas = []
        for address in (*places[index][first:], *places[index][:first]):
            key = index, len(places), address
            if key not in self._replicas:
                hello = self._hello(index=index, count=len(places), secret=address.secret)
                self._replicas.setdefault(key, _Replica(address, messages.frame(hello)))
            replicas.append(self._replicas[key])
        return replicas


def _disconnect(replicas: Mapping[Any, _Replica]) -> None:
    for replica in replicas.values():
        replica.disconnect()


class _Replica:
    """One replica of a shard, and its idle connections."""

    def __init__(self, address: Address, hello: bytes) -> None:
        self._address, self._hello = address, hello
        self._idle: deque[socket.socket] = deque()
        self._avoided_until = 0.0

    def send(self, question: bytes, *, anew: bool = False) -> _Sent | None:
        """Begin to send a question; returns None if the replica cannot be reached.

        If it is sent `anew`, over a new connection, all idle ones are closed.
        """
        if anew:
            self.disconnect()
        while (idle := self._take()) is not None:
            try:
                return _Sent(self, idle, question, reused=True)
            except OSError:
                idle.close()
        if monotonic() < self._avoided_until:
            return None
        host, port, _ = self._address
        opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            failed = opened.connect_ex((host, port))
            if failed not in (0, errno.EINPROGRESS):
                raise OSError(failed, os.strerror(failed))
            return _Sent(self, opened, self._hello + question, reused=False)
        except OSError:  # known at once, so nothing is lost by trying again
            opened.close()
            return None

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


class _Sent:
    """A question to a replica, over a connection that never blocks.

    Over one that is not `reused`, the question follows a `Hello`, and the answer a `Welcome`.
    """

    def __init__(
        self, replica: _Replica, connection: socket.socket, content: bytes, *, reused: bool
    ) -> None:
        """Send as much of the content as the connection takes now; raises `OSError`."""
        self.replica, self.connection, self.reused = replica, connection, reused
        self._start, self._unsent = monotonic(), memoryview(content)
        self._incoming, self._welcomed = messages.Incoming(), reused
        self._reached = reused
        self.send()

    @property
    def events(self) -> int:
        """What to wait for."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def unreached(self, seconds: float) -> bool:
        """Whether the connection has not come about for so long."""
        return not self._reached and monotonic() > self._start + seconds

    def send(self) -> None:
        """Send what the connection takes now; raises `OSError`."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.connection.send(self._unsent) :]
                self._reached = True
        except BlockingIOError:
            pass

    def receive(self) -> Answer | None:
        """Receive what has arrived; returns the answer once it is complete.

        Raises `OSError`, and `ValueError` for what is no answer.
        """
        try:
            if not self._incoming.receive(self.connection):
                raise ConnectionResetError("the shard has closed the connection")
        except BlockingIOError:
            return None
        for content in self._incoming.frames():
            answer = messages.answer_in(content)
            if isinstance(answer, Welcome) and not self._welcomed:  # the answer itself follows
                self._welcomed = True
            elif self._incoming.empty:
                return answer
            else:
                raise WrongAnswer("more came than an answer")
        return None

    def keep(self) -> None:
        """Keep the connection for the next question, if all of this one was sent."""
        if self._unsent:
            self.connection.close()
        else:
            self.replica.keep(self.connection)


class _Asking(Generic[_Value]):
    """One question to all shards; `answers` has None for those that have not answered."""

    def __init__(
        self,
        shards: int,
        known: Callable[[int], Sequence[_Replica]],
        question: bytes,
        read: Callable[[Answer], _Value],
        *,
        deadline: float,
    ) -> None:
        """Ask a replica of each shard; `known` returns those of one shard, best first.

        It is called again for each further replica, because one may have come meanwhile. `read`
        returns what is in an answer, and raises `WrongAnswer` if it does not answer the question.
        """
        self._known, self._question, self._read = known, question, read
        self._deadline = deadline
        self._causes: dict[int, str] = {}  # by shard: why a replica has not answered
        self._tried: list[list[_Replica]] = [[] for _ in range(shards)]
        self._open: dict[int, tuple[int, _Sent]] = {}  # by file descriptor, with the shard
        self._poll = select.poll()
        self.answers: list[_Value | None] = [None] * shards
        for index in range(shards):
            self._ask_next(index)

    def wait(self) -> None:
        """Wait for all answers, until the deadline."""
        look, hedged = monotonic() + HEDGE_SECONDS, False
        while self._open and (now := monotonic()) < self._deadline:
            for descriptor, events in self._poll.poll(1000 * (min(look, self._deadline) - now)):
                if descriptor in self._open:
                    self._advance(descriptor, events)
            if monotonic() < look:
                continue
            look = monotonic() + LOOK_SECONDS
            if not hedged:
                hedged = True
                for index in {index for index, _ in self._open.values()}:
                    self._ask_next(index)
            self._leave_unreached()

    def close(self) -> None:
        """Close the connections whose answers did not come in time."""
        for descriptor, (index, sent) in list(self._open.items()):
            self._causes.setdefault(index, f"shard {index} is too slow")
            self._abandon(descriptor, avoided=sent.unreached(CONNECT_SECONDS))

    def missing(self) -> str:
        """Say how many shards have not answered, and why the first of them has not."""
        missing = [index for index, answer in enumerate(self.answers) if answer is None]
        said = f"{len(missing)} of {len(self.answers)} shards do not answer"
        if not missing:
            return said
        first = missing[0]
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
            self._poll.register(descriptor, sent.events)

    def _untried(self, index: int) -> _Replica | None:
        """Return the shard's next replica that this question has not been sent to, if any."""
        tried = self._tried[index]
        for replica in self._known(index):
            if replica not in tried:
                tried.append(replica)
                return replica
        return None

    def _advance(self, descriptor: int, events: int) -> None:
        """Send and receive what is possible now."""
        index, sent = self._open[descriptor]
        try:
            if events & select.POLLOUT:
                sent.send()
                self._poll.modify(descriptor, sent.events)
            answer = sent.receive() if events & ~select.POLLOUT else None
            if answer is None:
                return
            if isinstance(answer, Refused):
                self._refused(descriptor, answer)
                return
            value = self._read(answer)
        except OSError:
            self._abandon(descriptor)
            self._ask_next(index, sent.replica if sent.reused else None)
        except ValueError as error:
            log.error("a shard answers wrongly", extra={"shard": index, "cause": str(error)})
            self._causes[index] = f"shard {index} answers wrongly: {error}"
            self._abandon(descriptor, avoided=True)
            self._ask_next(index)
        else:
            self._forget(descriptor).keep()
            self.answers[index] = value
            for other in [one for one, (of, _) in self._open.items() if of == index]:
                # Its answer would come too late. If even its connection does, it is left alone.
                late = self._open[other][1].unreached(HEDGE_SECONDS)
                self._abandon(other, avoided=late)

    def _refused(self, descriptor: int, answer: Refused) -> None:
        index, _ = self._open[descriptor]
        self._causes[index] = answer.message
        if answer.reason == "other":
            self._abandon(descriptor, avoided=True)
        else:
            self._forget(descriptor).keep()
        self._ask_next(index)

    def _leave_unreached(self) -> None:
        """Give up connections that do not come about, and ask other replicas."""
        for descriptor, (index, sent) in list(self._open.items()):
            if sent.unreached(CONNECT_SECONDS):
                self._abandon(descriptor, avoided=True)
                self._ask_next(index)

    def _abandon(self, descriptor: int, *, avoided: bool = False) -> None:
        sent = self._forget(descriptor)
        sent.connection.close()
        if avoided:
            sent.replica.avoid()

    def _forget(self, descriptor: int) -> _Sent:
        self._poll.unregister(descriptor)
        return self._open.pop(descriptor)[1]
