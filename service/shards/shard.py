"""A shard: a process that follows the label log, holds a share of the keys, and answers fronts.

It opens the same bundle as its fronts, and of one in parts, its own part. It encodes texts only if
the log has vectors of another encoder, and predicts nothing; its sealers build the graphs over its
rows. Each connection has a thread, which answers one question after the other.

Anybody who reaches the port can connect. Until a connection has said a `Hello` with the shard's
secret, it is a stranger's: it costs a thread and at most `HELLO_BYTES`, for `HELLO_SECONDS`. Of
many strangers, the oldest are sent away. The secret is made at the start, and known to fronts
through Ray.
"""

from __future__ import annotations

import hmac
import logging
import math
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import numpy as np

from service.core.bundle import manifest
from service.core.changes import UseBundle
from service.core.errors import KeymatchError
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.index.key_parts import KeyShare
from service.core.label_log import open_log
from service.core.memory.view import View
from service.engine.device import segment_source
from service.engine.loaded_bundle import LoadedBundle, load_bundle
from service.engine.sealer import open_sealers
from service.engine.writing.writer import Writer
from service.settings import EngineSettings
from service.shards import messages
from service.shards.front import Address
from service.shards.messages import (
    HELLO_BYTES,
    MOST_BYTES,
    Answer,
    Ask,
    Hello,
    Incoming,
    Question,
    Refused,
    Search,
    Status,
)
from service.telemetry import Telemetry

HELLO_SECONDS = 10.0  # from a connection to its complete `Hello`
MESSAGE_SECONDS = 30.0  # for the rest of a question whose first byte is here, and for an answer
STRANGERS = 64  # connections without a `Hello`; beyond, the oldest one is closed
FRONTS = 4_096  # connections of fronts; further ones are refused
BACKLOG = 128
RETRY_SECONDS = 0.1  # after a connection that could not be accepted, such as without a descriptor

TOLD = ("protocol", "version")  # what a refusal tells of both sides: the rest are checksums

log = logging.getLogger("keymatch")


class Shard:
    """One share of the keys of a bundle and of what was learned since, on a TCP port."""

    def __init__(
        self,
        bundle: Path,
        state: Path | str,
        *,
        share: KeyShare,
        settings: EngineSettings,
        host: str = "127.0.0.1",
    ) -> None:
        """Open the bundle, replay the log and listen at a free port of `host`.

        Raises `BundleError` or `LogError` if it cannot hold its share.
        """
        self.share, self._patience = share, settings.shard_timeout_ms / 1000
        self._log = open_log(state, create=False)
        try:
            self._loaded = load_bundle(bundle, self._log, settings, share=share)
            self._loaded.warm_up_search()
        except BaseException:
            self._log.close()
            raise
        self._host, self._secret = host, secrets.token_hex(16)
        self._strangers: dict[socket.socket, None] = {}  # in the order of their arrival
        self._fronts: set[socket.socket] = set()
        self._left_at = monotonic()  # when the last front left
        self.diverged = False  # a defect; after a restart, the log decides again
        self._published, self._closing = threading.Condition(), threading.Event()
        self._hello = messages.hello_of(
            settings,
            bundle=manifest.fingerprint(self._loaded.bundle.manifest),
            log=self._log.id,
            index=share.index,
            count=share.count,
            secret=self._secret,
        )
        telemetry = Telemetry()
        self._writer = Writer(
            log=self._log,
            loaded=self._loaded,
            telemetry=telemetry,
            queue_labels=settings.queue_labels,
            published=self._publish,
            reload_requested=self._reloaded,
        )
        folder = Path("shards") / f"{share.index}-of-{share.count}"
        self._sealers = open_sealers(
            lambda name: segment_source(None, self._log, settings, folder=f"{folder / name}"),
            writer=self._writer,
            loaded=lambda: self._loaded,
            telemetry=telemetry,
        )
        for sealer in self._sealers:
            sealer.wake()
        self._log.watch(self._writer.wake)
        self._listening = socket.create_server((host, 0), backlog=BACKLOG)
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    @property
    def address(self) -> Address:
        """Where it answers, and its secret."""
        return Address(self._host, self._listening.getsockname()[1], self._secret)

    @property
    def version(self) -> int:
        """The newest version that it holds."""
        return self._loaded.memory.view.version

    @property
    def alive(self) -> bool:
        """Whether it can still follow the log, and gives rows the numbers that fronts give them."""
        return self._writer.alive and not self.diverged

    @property
    def built(self) -> bool:
        """Whether all its graphs are built."""
        return self._loaded.memory.view.built

    def idle_seconds(self) -> float:
        """Return for how long no front has been connected."""
        return 0.0 if self._fronts else monotonic() - self._left_at

    def close(self) -> None:
        """Stop answering, and stop all threads and child processes."""
        self._closing.set()
        self._listening.close()
        for connection in [*self._strangers, *self._fronts]:
            _end(connection)
        for sealer in self._sealers:
            sealer.close()
        self._writer.close()
        self._log.close()

    # The writer's thread -----------------------------------------------------------------

    def _publish(self, loaded: LoadedBundle) -> None:
        """Wake the threads that wait for a version, and the sealers if there is a plan."""
        with self._published:
            self._published.notify_all()
        if not self.built:
            for sealer in self._sealers:
                sealer.wake()

    def _reloaded(self, request: UseBundle) -> None:
        log.info("the fronts have changed to another bundle", extra={"bundle": request.bundle})

    # The threads of connections ----------------------------------------------------------

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                self._closing.wait(RETRY_SECONDS)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._strangers[connection] = None
            for oldest in list(self._strangers)[:-STRANGERS]:
                self._strangers.pop(oldest, None)
                _end(oldest)
            try:
                threading.Thread(
                    target=self._serve, args=(connection,), name="front", daemon=True
                ).start()
            except RuntimeError:  # there can be no more threads
                self._strangers.pop(connection, None)
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError, ValueError):  # the front left, or is none
                self._converse(connection)
        finally:
            self._strangers.pop(connection, None)
            if connection in self._fronts:
                self._fronts.discard(connection)
                self._left_at = monotonic()

    def _converse(self, connection: socket.socket) -> None:
        incoming = Incoming(most=HELLO_BYTES)
        questions = _questions(connection, incoming, seconds=HELLO_SECONDS)
        refused = self._refusal(next(questions, None))
        if refused is None:
            self._fronts.add(connection)
            self._strangers.pop(connection, None)
        connection.settimeout(MESSAGE_SECONDS)
        connection.sendall(messages.frame(refused or messages.Welcome(version=self.version)))
        if refused is not None:
            return
        search_in_one_thread()
        incoming.most = MOST_BYTES
        for question in _questions(connection, incoming):
            connection.sendall(messages.frame(self._answered(question)))
            if self._closing.is_set():
                return

    def _refusal(self, hello: Question | None) -> Refused | None:
        """Return why a connection is not served, or None."""
        if not isinstance(hello, Hello):
            return Refused(reason="other", message="a connection must begin with a hello")
        if not hmac.compare_digest(hello.secret.encode(), self._secret.encode()):
            return Refused(reason="other", message="this shard has another secret")
        for name in Hello.__struct_fields__:
            own, front = getattr(self._hello, name), getattr(hello, name)
            if own != front:
                told = f" ({own}, and the front {front})" if name in TOLD else ""
                return Refused(reason="other", message=f"this shard has another {name}{told}")
        if len(self._fronts) >= FRONTS:
            return Refused(reason="failed", message="this shard has too many connections")
        return None

    def _answered(self, question: Question) -> Answer:
        try:
            return self._answer(question)
        except KeymatchError as error:
            return Refused(reason="failed", message=str(error))
        except Exception as error:
            log.exception("defect in a shard")
            return Refused(reason="failed", message=repr(error))

    def _answer(self, question: Question) -> Answer:
        if isinstance(question, Hello):
            return Refused(reason="failed", message="the hello was said before")
        if isinstance(question, Ask):
            newest = self._loaded.memory.view
            return Status(version=newest.version, rows=newest.rows, built=newest.built)
        view = self._at(question.version)
        if isinstance(view, Refused):
            return view
        if isinstance(question, Search):
            if question.next_row != view.next_row:
                self.diverged = True
                log.error(
                    "rows have other numbers than in the front", extra={"version": view.version}
                )
                return Refused(reason="failed", message="a shard numbers rows otherwise")
            dimension = self._loaded.bundle.manifest.encoder.dimension
            wanted = messages.search_of(question, dimension=dimension)
            scoped = self._loaded.memory.in_scope(view, wanted.scope)
            return messages.answer_of(scoped.answer(wanted))
        rows = np.frombuffer(question.rows, np.int64)
        places = np.flatnonzero(view.are_alive(rows))
        return messages.keys_of(places, view.vectors(rows[places]))

    def _at(self, version: int) -> View | Refused:
        """Return the view of a version, and wait for it if it has not come yet."""
        memory, deadline = self._loaded.memory, monotonic() + self._patience
        while (view := memory.at(version)) is None:
            if version < memory.view.version:
                return Refused(reason="gone", message=f"version {version} is no longer kept")
            self._writer.wake()
            with self._published:
                left = deadline - monotonic()
                if memory.view.version < version and not self._published.wait(max(0.0, left)):
                    return Refused(reason="late", message=f"version {version} has not come yet")
        return view


def _questions(
    connection: socket.socket, incoming: Incoming, *, seconds: float | None = None
) -> Iterator[Question]:
    """Yield the questions until the connection ends; raises `OSError` and `ValueError`.

    The first byte of one may come within `seconds`, or at any time. The rest of it is then due
    within these, or `MESSAGE_SECONDS`.
    """
    while True:
        connection.settimeout(seconds)
        deadline = monotonic() + (seconds or math.inf)
        while (content := next(incoming.frames(), None)) is None:
            if not incoming.empty:
                deadline = min(deadline, monotonic() + MESSAGE_SECONDS)
                connection.settimeout(max(0.001, deadline - monotonic()))
            if not incoming.receive(connection):
                return
            if monotonic() > deadline:
                raise TimeoutError("a question did not arrive in time")
        connection.settimeout(MESSAGE_SECONDS)  # for the answer
        yield messages.question_in(content)


def _end(connection: socket.socket) -> None:
    """End a connection, and with it the thread that serves it."""
    with suppress(OSError):  # it has just ended
        connection.shutdown(socket.SHUT_RDWR)
