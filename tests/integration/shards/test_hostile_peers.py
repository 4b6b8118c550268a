"""Strangers at a shard's port, and replicas that answer slowly or wrongly, over real sockets."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from msgspec import msgpack, structs

from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle
from service.core.errors import ShardsUnavailable
from service.core.label_log import open_log
from service.shards import messages
from service.shards import shard as shard_module
from service.shards.front import Address, SocketShards
from service.shards.messages import MOST_BYTES, Answer, Found, Hello, Refused, Status, Welcome
from service.shards.shard import STRANGERS, Shard
from tests.integration.shards.test_shards import (
    COUNT,
    ROWS,
    SETTINGS,
    Running,
    results,
    search_in,
)
from tests.integration.shards.test_shards import front as front
from tests.integration.shards.test_shards import running as running
from tests.support.serving import LocalService
from tests.support.waiting import wait_for

SOON = 10.0  # seconds in which the tests' queries are answered on a busy machine


class Conversation:
    """A front of one shard, message by message."""

    def __init__(self, address: Address) -> None:
        self.connection = socket.create_connection(address[:2], timeout=30)
        self._incoming = messages.Incoming()

    def say(self, message: Any) -> None:
        content = msgpack.encode(message)
        self.connection.sendall(len(content).to_bytes(4, "big") + content)

    def heard(self) -> Answer | None:
        """The next answer; None at the end."""
        while (content := next(self._incoming.frames(), None)) is None:
            if not self._incoming.receive(self.connection):
                return None
        return messages.answer_in(content)

    def ask(self, message: Any) -> Answer | None:
        self.say(message)
        return self.heard()

    def close(self) -> None:
        self.connection.close()


def hello_to(running: Running, index: int = 0) -> Hello:
    """What a front of this bundle and log says to a shard."""
    with closing(open_log(running.state)) as log:
        return messages.hello_of(
            running.settings,
            bundle=manifest.fingerprint(open_bundle(running.bundle).manifest),
            log=log.id,
            index=index,
            count=COUNT,
            secret=running.shards[index, 0].address.secret,
        )


@contextmanager
def asking(running: Running) -> Iterator[SocketShards]:
    with closing(open_log(running.state)) as log:
        yield running.open(open_bundle(running.bundle), log, SETTINGS)


# Strangers ---------------------------------------------------------------------------------------


def test_a_front_that_was_made_otherwise_is_told_why(running: Running) -> None:
    shard, hello = running.shards[0, 0], hello_to(running)
    for other, why in (
        ({"secret": "guessed"}, "another secret$"),
        ({"secret": "\N{SNOWMAN}"}, "another secret$"),
        ({"protocol": 2}, r"another protocol \(1, and the front 2\)"),
        ({"version": "0.0.9"}, r"another version \(.+, and the front 0.0.9\)"),
        ({"settings": "0" * 32}, "another settings$"),
        ({"bundle": "0" * 32}, "another bundle$"),
    ):
        with closing(Conversation(shard.address)) as front:
            said = front.ask(structs.replace(hello, **other))
            assert isinstance(said, Refused) and said.reason == "other"
            assert re.search(why, said.message)
            assert shard.idle_seconds() > 0  # it is nobody's front
            assert front.heard() is None


def test_a_hello_of_a_later_protocol_is_understood(running: Running) -> None:
    """It may have other fields."""
    address = running.shards[0, 0].address
    with closing(Conversation(address)) as front:
        later = {"type": "hello", "secret": address.secret, "protocol": 9, "compression": "zstd"}
        said = front.ask(later)
        assert isinstance(said, Refused) and "protocol (1, and the front 9)" in said.message


def test_a_secret_is_new_at_each_start(running: Running) -> None:
    secrets = {shard.address.secret for shard in running.shards.values()}
    running.stop(0)
    secrets.add(running.start(0).address.secret)
    assert len(secrets) == COUNT + 1 and min(map(len, secrets)) >= 32


def test_strangers_take_few_threads_and_no_memory(running: Running, front: LocalService) -> None:
    """Five bytes of each announce a message of 256 MiB."""
    host, port, _ = running.shards[0, 0].address
    before, resident = results(front), resident_bytes()
    with ExitStack() as strangers:
        for number in range(300):
            connection = strangers.enter_context(socket.create_connection((host, port)))
            with suppress(OSError):
                connection.sendall((MOST_BYTES - number).to_bytes(4, "big") + b"x")
                connection.sendall(b"\0\0\0\x09x" if number % 2 else b"")
        for _ in range(300):
            strangers.enter_context(socket.create_connection((host, port)))
        wait_for(lambda: threads_of_fronts() <= STRANGERS + COUNT * 10)
        assert resident_bytes() - resident < 64 * 1024**2
        assert results(front) == before
        with asking(running) as new:  # over new connections
            assert len(new.search(search_in(version=0)).rows) == 1


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4_096


def threads_of_fronts() -> int:
    return sum(thread.name == "front" for thread in threading.enumerate())


def test_a_hello_byte_by_byte_gets_no_more_time(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "HELLO_SECONDS", 0.5)
    with closing(Conversation(running.shards[0, 0].address)) as front:
        start = monotonic()
        with suppress(ConnectionError):
            for byte in messages.frame(hello_to(running)):
                front.connection.sendall(bytes([byte]))
                sleep(0.05)
            assert front.heard() is None
        assert monotonic() - start < SOON


def test_a_front_that_stops_within_a_question_is_left(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "MESSAGE_SECONDS", 0.3)
    shard = running.shards[0, 0]
    with closing(Conversation(shard.address)) as front:
        assert isinstance(front.ask(hello_to(running)), Welcome)
        sleep(0.6)  # between questions, there is no limit
        assert isinstance(front.ask(messages.Ask()), Status)
        assert shard.idle_seconds() == 0
        front.connection.sendall(messages.frame(messages.Ask())[:-1])
        with suppress(ConnectionError):
            assert front.heard() is None
    wait_for(lambda: shard.idle_seconds() > 0)


def test_a_front_that_reads_no_answer_is_left(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "MESSAGE_SECONDS", 0.3)
    shard = running.shards[0, 0]
    with closing(Conversation(shard.address)) as front:
        assert isinstance(front.ask(hello_to(running)), Welcome)
        rows = np.arange(ROWS).repeat(50_000)
        front.say(messages.Vectors(version=0, rows=rows.tobytes()))
        wait_for(lambda: shard.idle_seconds() > 0)


# Replicas ----------------------------------------------------------------------------------------

Speech = Callable[[socket.socket, Found], None]  # sends something in the place of an answer


def with_too_few_rows(connection: socket.socket, answer: Found) -> None:
    connection.sendall(messages.frame(structs.replace(answer, rows=answer.rows[:-8])))


def with_rows_beyond(connection: socket.socket, answer: Found) -> None:
    rows = np.full(len(answer.rows) // 8, 2**40)
    connection.sendall(messages.frame(structs.replace(answer, rows=rows.tobytes())))


def of_another_kind(connection: socket.socket, _: Found) -> None:
    connection.sendall(messages.frame(Status(version=0, rows=1, built=True)))


def of_no_kind(connection: socket.socket, _: Found) -> None:
    connection.sendall(b"\0\0\0\x03\x93\x01\x02")


def twice(connection: socket.socket, answer: Found) -> None:
    connection.sendall(2 * messages.frame(answer))


def too_long(connection: socket.socket, _: Found) -> None:
    connection.sendall(b"\xff\xff\xff\xff")


def byte_by_byte(connection: socket.socket, answer: Found) -> None:
    for byte in messages.frame(answer):
        connection.sendall(bytes([byte]))
        sleep(0.05)


def never_complete(connection: socket.socket, _: Found) -> None:
    connection.sendall(MOST_BYTES.to_bytes(4, "big"))
    while True:
        connection.sendall(b"x" * 100)
        sleep(0.05)


WRONG = [with_too_few_rows, with_rows_beyond, of_another_kind, of_no_kind, twice, too_long]
SLOW = [byte_by_byte, never_complete]


@contextmanager
def hostile(running: Running, speech: Speech) -> Iterator[Address]:
    """A replica of shard 0 that knows its answers, and says something else."""
    hello, shard = hello_to(running), running.shards[0, 0]

    def serve(connection: socket.socket) -> None:
        received = messages.Incoming()
        with connection, suppress(OSError, ValueError), closing(Conversation(shard.address)) as own:
            own.ask(hello)
            while True:
                for content in received.frames():
                    question = messages.question_in(content)
                    if isinstance(question, Hello):
                        connection.sendall(messages.frame(Welcome(version=0)))
                        continue
                    answer = own.ask(question)
                    assert isinstance(answer, Found)
                    speech(connection, answer)
                if not received.receive(connection):
                    return

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=partial(serve, connection), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield Address(*listening.getsockname(), "")
        listening.shutdown(socket.SHUT_RDWR)


@contextmanager
def alone(running: Running, speech: Speech) -> Iterator[None]:
    """Let the hostile replica be the only one of shard 0 that is known."""
    with hostile(running, speech) as place:
        running.others[0] = [place]
        hidden: Shard = running.shards.pop((0, 0))
        try:
            yield
        finally:
            running.shards[0, 0] = hidden


def test_another_replica_is_asked_meanwhile(running: Running, front: LocalService) -> None:
    before = results(front)
    for speech in (*WRONG, *SLOW):
        with hostile(running, speech) as place:
            running.others[0] = [place]
            start = monotonic()
            for _ in range(2):  # replicas take turns
                assert results(front) == before
            assert monotonic() - start < SOON < SETTINGS.shard_timeout_ms / 1000


def test_a_wrong_answer_is_named(running: Running) -> None:
    for speech in WRONG:
        with alone(running, speech), asking(running) as shards:
            why = "1 of 3 shards do not answer: shard 0 answers wrongly: "
            with pytest.raises(ShardsUnavailable, match=why):
                shards.search(search_in(version=0))


def test_a_question_ends_at_its_deadline_however_often_a_byte_comes(running: Running) -> None:
    running.settings = replace(SETTINGS, shard_timeout_ms=600)
    for index in range(COUNT):
        running.stop(index)
        running.start(index)
    for speech in SLOW:
        with alone(running, speech), asking(running) as shards:
            start = monotonic()
            with pytest.raises(ShardsUnavailable, match=r"1 of 3 .* too slow"):
                shards.search(search_in(version=0))
            assert 0.6 <= monotonic() - start < 5 * 0.6
    running.settings = replace(running.settings, partial_answers=True)
    with alone(running, never_complete), asking(running) as shards:
        start = monotonic()
        assert shards.search(search_in(version=0)).partial
        assert monotonic() - start < 10 * 0.6  # two questions


def test_a_replica_that_reads_nothing_delays_no_other(running: Running) -> None:
    """A question of megabytes does not fit into what its connection holds."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        running.others[0] = [Address(*deaf.getsockname(), "")]
        rows = np.arange(ROWS).repeat(20_000)
        with asking(running) as shards:
            start = monotonic()
            for _ in range(2):
                found = shards.vectors(0, rows)
            assert monotonic() - start < SOON
        assert np.array_equal(found[::20_000], open_bundle(running.bundle).keys)
