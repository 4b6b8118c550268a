"""The messages between a front and a shard: msgpack in frames, over TCP.

A frame is its length in four bytes, big-endian, and then one message. A front opens a connection
with `Hello`, and a shard answers `Welcome` or `Refused`. Each question then gets one answer, in
order. Arrays are sent as their bytes, little-endian: similarities and cosines as float32, keys as
float16, row numbers as int64.

Whatever changes these messages also changes `PROTOCOL`.
"""

from __future__ import annotations

import hashlib
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Literal

import msgspec
import numpy as np
import orjson

from service.core.label_filter import Condition, LabelFilter
from service.core.memory.shards import FoundRows, KeySearch, Scope, ShardStatus
from service.core.tenant import Tenant
from service.core.types import Halves, RowKind, Rows
from service.settings import EngineSettings

PROTOCOL = 1
MOST_BYTES = 256 * 1024**2  # of one message
HELLO_BYTES = 4_096  # of a `Hello`, which anyone can send
# Memory for a message is taken as it arrives: its length alone, which anyone can send, takes none.
_PIECE_BYTES = 262_144
_LENGTH = struct.Struct("!I")
# Settings that differ between machines, or that only fronts use.
NOT_OF_SHARDS = (
    *("threads", "live_bytes"),
    *("queue_queries", "queue_target_ms", "queue_interval_ms", "version_waiters"),
    *("write_deadline_ms", "snapshot_seconds", "cached_queries", "partial_answers"),
)


class WrongAnswer(ValueError):
    """A shard's answer cannot be that to the question: it has another kind, shape or range."""


# A filter as lists: of its groups all, any and none, or of a condition's four fields.
FilterLists = list[Any]


class Hello(msgspec.Struct, tag="hello", frozen=True, kw_only=True):
    """Opens a connection: with which secret, what the front was made with, and for which shard.

    All fields have defaults, so that a shard can read, and refuse, the `Hello` of another protocol.
    """

    secret: str = ""
    protocol: int = 0
    version: str = ""  # of Keymatch
    settings: str = ""  # their fingerprint
    bundle: str = ""  # its fingerprint
    log: str = ""  # its id
    index: int = -1
    count: int = 0


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


def hello_of(
    settings: EngineSettings, *, bundle: str, log: str, index: int, count: int, secret: str = ""
) -> Hello:
    """Return the `Hello` of this version of Keymatch."""
    named = {name: value for name, value in asdict(settings).items() if name not in NOT_OF_SHARDS}
    return Hello(
        secret=secret,
        protocol=PROTOCOL,
        version=version("keymatch"),
        settings=_digest(orjson.dumps(named, default=str, option=orjson.OPT_SORT_KEYS)),
        bundle=bundle,
        log=log,
        index=index,
        count=count,
    )


def name_of(hello: Hello) -> str:
    """Return a name for the shards that a `Hello`, without its secret, is for."""
    told = msgspec.structs.replace(hello, secret="", index=-1)
    return f"{_digest(_encoder.encode(told))}-{hello.index}-of-{hello.count}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


class Incoming:
    """What has arrived over a connection, until it is a complete frame."""

    def __init__(self, *, most: int = MOST_BYTES) -> None:
        """Refuse frames of more than `most` bytes."""
        self.most = most
        self._arrived = bytearray()

    @property
    def empty(self) -> bool:
        """Whether no part of a frame has arrived."""
        return not self._arrived

    def receive(self, connection: socket.socket) -> bool:
        """Receive once; returns False at the end of the connection.

        Raises `OSError`, also for an end within a frame.
        """
        piece = connection.recv(min(_PIECE_BYTES, _LENGTH.size + self.most))
        if not piece and self._arrived:
            raise ConnectionResetError("the connection ended within a message")
        self._arrived += piece
        return bool(piece)

    def frames(self) -> Iterator[bytes]:
        """Yield the complete frames, without their lengths; raises `ValueError` for a long one."""
        while len(self._arrived) >= _LENGTH.size:
            [size] = _LENGTH.unpack_from(self._arrived)
            if size > self.most:
                raise ValueError(f"a message of {size} bytes is too long")
            if len(self._arrived) < (end := _LENGTH.size + size):
                return
            content = bytes(self._arrived[_LENGTH.size : end])
            del self._arrived[:end]
            yield content


def question_in(content: bytes) -> Question:
    """Return the question in a frame; raises `ValueError` for what is no question."""
    return _questions.decode(content)


def answer_in(content: bytes) -> Answer:
    """Return the answer in a frame; raises `WrongAnswer` for what is no answer."""
    try:
        return _answers.decode(content)
    except ValueError as error:
        raise WrongAnswer(f"what came is no answer: {error}") from error


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


def found_of(answer: Answer, wanted: KeySearch) -> FoundRows:
    """Return what was found as it was sent; raises `WrongAnswer` if it cannot answer `wanted`."""
    if not isinstance(answer, Found):
        raise WrongAnswer(f"a search was answered by {type(answer).__name__}")
    shape = len(wanted.queries), wanted.count or wanted.depth
    similarities = _array(answer.similarities, np.float32, shape, of="similarities")
    rows = _array(answer.rows, np.int64, shape, of="rows")
    if len(answer.cosines) != len(wanted.named):
        raise WrongAnswer(f"cosines of {len(answer.cosines)} queries, not {len(wanted.named)}")
    cosines = [
        _array(sent, np.float32, (len(named),), of="cosines")
        for sent, named in zip(answer.cosines, wanted.named, strict=True)
    ]
    # Comparisons with NaN are false.
    if not (similarities[:, :1] < np.inf).all():
        raise WrongAnswer("similarities are not finite")
    if not (similarities[:, 1:] <= similarities[:, :-1]).all():
        raise WrongAnswer("similarities are not in descending order")
    least = np.where(similarities > -np.inf, 0, -1)  # row -1 fills missing places
    if ((rows < least) | (rows >= wanted.next_row)).any():
        raise WrongAnswer(f"rows beyond the {wanted.next_row} of the memory")
    return FoundRows(similarities, rows, cosines)


def keys_of(places: Rows, keys: Halves) -> Keys:
    """Return keys [n, d] of the rows at `places` [n] of a question, as they are sent."""
    return Keys(places=places.astype(np.int64).tobytes(), keys=keys.tobytes())


def found_keys_of(answer: Answer, *, asked: int, dimension: int) -> tuple[Rows, Halves]:
    """Return places [n] among so many `asked` rows, and their keys [n, d]; raises `WrongAnswer`."""
    if not isinstance(answer, Keys):
        raise WrongAnswer(f"a question for keys was answered by {type(answer).__name__}")
    places = _array(answer.places, np.int64, (-1,), of="places")
    keys = _array(answer.keys, np.float16, (len(places), dimension), of="keys")
    if len(places) and not (0 <= places[0] and places[-1] < asked and (np.diff(places) > 0).all()):
        raise WrongAnswer(f"places that are not in order, or not among {asked}")
    return places, keys


def status_of(answer: Answer) -> ShardStatus:
    """Return a shard's status as it was sent; raises `WrongAnswer`."""
    if not isinstance(answer, Status):
        raise WrongAnswer(f"a question for the status was answered by {type(answer).__name__}")
    return ShardStatus(version=answer.version, rows=answer.rows, built=answer.built)


def _array(content: bytes, kind: type[Any], shape: tuple[int, ...], *, of: str) -> Any:
    """Return sent numbers as an array; -1 in the shape stands for any number."""
    try:
        return np.frombuffer(content, kind).reshape(shape)
    except ValueError:
        raise WrongAnswer(
            f"{len(content)} bytes of {of} instead of an array {list(shape)} of {kind.__name__}"
        ) from None


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
