"""The messages between a front and a shard: msgpack in frames, over TCP.

A frame is its length in four bytes, big-endian, and then one message. A front opens a connection
with `Hello`, and a shard answers `Welcome` or `Refused`. Each question then gets one answer, in
order. Arrays are sent as their bytes, little-endian: similarities and cosines as float32, keys as
float16, row numbers as int64.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from service.core.label_filter import Condition, LabelFilter
from service.core.memory.shards import FoundRows, KeySearch, Scope
from service.core.tenant import Tenant
from service.core.types import Halves, RowKind, Rows

MOST_BYTES = 256 * 1024**2  # of one message
_LENGTH = struct.Struct("!I")

# A filter as lists: of its groups all, any and none, or of a condition's four fields.
FilterLists = list[Any]


class Hello(msgspec.Struct, tag="hello", frozen=True, kw_only=True):
    """Opens a connection: the bundle by its fingerprint, the log by its id, and the shard."""

    bundle: str
    log: str
    index: int
    count: int


class Search(msgspec.Struct, tag="search", frozen=True, kw_only=True):
    """Asks for `KeySearch`."""

    version: int
    next_row: int
    depth: int
    count: int
    queries: bytes
    kind: str | None = None
    exact: bool = False
    named: list[bytes] = []  # msgspec copies it for each message
    at: int | None = None
    tenant: tuple[str, str] | None = None
    filters: list[FilterLists] = []


class Vectors(msgspec.Struct, tag="vectors", frozen=True, kw_only=True):
    """Asks for the keys of rows."""

    version: int
    rows: bytes


class Ask(msgspec.Struct, tag="ask", frozen=True, kw_only=True):
    """Asks for the status."""


Question = Hello | Search | Vectors | Ask


class Welcome(msgspec.Struct, tag="welcome", frozen=True, kw_only=True):
    """Answers `Hello`: the shard's newest version."""

    version: int


class Found(msgspec.Struct, tag="found", frozen=True, kw_only=True):
    """Answers `Search` with what `FoundRows` has."""

    similarities: bytes
    rows: bytes
    cosines: list[bytes]


class Keys(msgspec.Struct, tag="keys", frozen=True, kw_only=True):
    """Answers `Vectors`: the places of the rows that the shard holds, and their keys."""

    places: bytes
    keys: bytes


Reason = Literal["other", "late", "gone", "failed"]


class Refused(msgspec.Struct, tag="refused", frozen=True, kw_only=True):
    """Why there is no answer.

    The shard holds `other` keys than the front asks for, is too `late` to have the version, no
    longer has it (`gone`), or `failed`.
    """

    reason: Reason
    message: str


class Status(msgspec.Struct, tag="status", frozen=True, kw_only=True):
    """Answers `Ask` with what `ShardStatus` has."""

    version: int
    rows: int
    built: bool


Answer = Welcome | Found | Keys | Status | Refused

_encoder = msgspec.msgpack.Encoder()
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def frame(message: Question | Answer) -> bytes:
    """Return a message as it is sent."""
    content = _encoder.encode(message)
    return _LENGTH.pack(len(content)) + content


def receive_question(connection: socket.socket) -> Question | None:
    """Return the next question, or None at the end.

    Raises `OSError`, and `ValueError` for what is no question.
    """
    content = _received(connection)
    return None if content is None else _questions.decode(content)


def receive_answer(connection: socket.socket) -> Answer:
    """Return the next answer; raises `OSError`, and `ValueError` for what is no answer."""
    content = _received(connection)
    if content is None:
        raise ConnectionResetError("the shard has closed the connection")
    return _answers.decode(content)


def _received(connection: socket.socket) -> bytearray | None:
    length = _exactly(connection, _LENGTH.size)
    if length is None:
        return None
    [size] = _LENGTH.unpack(length)
    if size > MOST_BYTES:
        raise ValueError(f"a message of {size} bytes is too long")
    content = _exactly(connection, size)
    if content is None:
        raise ConnectionResetError("the connection ended within a message")
    return content


def _exactly(connection: socket.socket, size: int) -> bytearray | None:
    """Receive `size` bytes; None if the connection ended before the first of them."""
    content, filled = bytearray(size), 0
    view = memoryview(content)
    while filled < size:
        received = connection.recv_into(view[filled:])
        if not received:
            if filled:
                raise ConnectionResetError("the connection ended within a message")
            return None
        filled += received
    return content


def question_of(wanted: KeySearch) -> Search:
    """Return a search as it is sent."""
    scope = wanted.scope
    return Search(
        version=wanted.version,
        next_row=wanted.next_row,
        depth=wanted.depth,
        count=wanted.count or wanted.depth,
        queries=np.ascontiguousarray(wanted.queries, np.float32).tobytes(),
        kind=None if wanted.kind is None else wanted.kind.value,
        exact=wanted.exact,
        named=[rows.astype(np.int64).tobytes() for rows in wanted.named],
        at=scope.at,
        tenant=None if scope.tenant is None else (scope.tenant.field, scope.tenant.value),
        filters=[_lists(one) for one in scope.filters],
    )


def search_of(asked: Search, *, dimension: int) -> KeySearch:
    """Return a search as it was sent; raises `ValueError`."""
    return KeySearch(
        version=asked.version,
        next_row=asked.next_row,
        scope=Scope(
            at=asked.at,
            tenant=None if asked.tenant is None else Tenant(*asked.tenant),
            filters=tuple(map(_filter, asked.filters)),
        ),
        queries=np.frombuffer(asked.queries, np.float32).reshape(-1, dimension),
        depth=asked.depth,
        count=asked.count,
        kind=None if asked.kind is None else RowKind(asked.kind),
        exact=asked.exact,
        named=[np.frombuffer(rows, np.int64) for rows in asked.named],
    )


def answer_of(found: FoundRows) -> Found:
    """Return found rows as a message."""
    return Found(
        similarities=np.ascontiguousarray(found.similarities, np.float32).tobytes(),
        rows=np.ascontiguousarray(found.rows, np.int64).tobytes(),
        cosines=[of_query.astype(np.float32).tobytes() for of_query in found.cosines],
    )


def found_of(answer: Found, *, count: int) -> FoundRows:
    """Return what was found as it was sent; raises `ValueError`."""
    return FoundRows(
        np.frombuffer(answer.similarities, np.float32).reshape(-1, count),
        np.frombuffer(answer.rows, np.int64).reshape(-1, count),
        [np.frombuffer(of_query, np.float32) for of_query in answer.cosines],
    )


def keys_of(places: Rows, keys: Halves) -> Keys:
    """Return keys [n, d] of the rows at `places` [n] of a question, as they are sent."""
    return Keys(places=places.astype(np.int64).tobytes(), keys=keys.tobytes())


def _lists(node: LabelFilter | Condition) -> FilterLists:
    if isinstance(node, Condition):
        return [node.field, node.operator, node.values, node.kind]
    return [[_lists(one) for one in nodes] for nodes in (node.all, node.any, node.none)]


def _filter(lists: FilterLists) -> LabelFilter:
    every, some, none = (tuple(map(_node, nodes)) for nodes in lists)
    return LabelFilter(all=every, any=some, none=none)


def _node(lists: Sequence[Any]) -> LabelFilter | Condition:
    if len(lists) == 3:
        return _filter(list(lists))
    field, operator, values, kind = lists
    return Condition(field=field, operator=operator, values=tuple(values), kind=kind)
