"""Questions and answers are received as they were sent, and nonsense is refused."""

import dataclasses
import socket
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core.memory.shards import EVERYTHING, FoundRows, KeySearch, Scope
from service.core.tenant import Tenant
from service.core.types import RowKind
from service.settings import EngineSettings
from service.shards import messages
from service.shards.messages import Found, Hello, Keys, Status, WrongAnswer
from tests.support.label_filters import FILTERS
from tests.support.vectors import units

DIMENSION = 8
DEFAULTS = EngineSettings()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def received(connection: socket.socket, *, most: int = messages.MOST_BYTES) -> bytes | None:
    """The content of the next frame; None at the end of the connection."""
    incoming = messages.Incoming(most=most)
    while (content := next(incoming.frames(), None)) is None:
        if not incoming.receive(connection):
            return None
    return content


def search(scope: Scope = EVERYTHING, **more: object) -> KeySearch:
    return KeySearch(
        version=3,
        next_row=40,
        scope=scope,
        queries=units(2, DIMENSION),
        depth=5,
        kind=RowKind.LABEL,
        exact=True,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "wanted",
    [
        search(),
        search(named=[np.array([4, 9]), np.zeros(0, np.int64)], count=3),
        search(Scope(at=12, tenant=Tenant("shop", "a=b"), filters=FILTERS)),
    ],
)
def test_a_search_is_received_as_it_was_sent(
    pair: tuple[socket.socket, socket.socket], wanted: KeySearch
) -> None:
    pair[0].sendall(messages.frame(messages.question_of(wanted)))
    asked = messages.question_in(received(pair[1]) or b"")
    assert isinstance(asked, messages.Search)
    arrived = messages.search_of(asked, dimension=DIMENSION)
    assert arrived.scope == wanted.scope
    assert np.array_equal(arrived.queries, wanted.queries)
    assert [rows.tolist() for rows in arrived.named] == [rows.tolist() for rows in wanted.named]
    assert (arrived.version, arrived.depth, arrived.kind, arrived.exact) == (
        *(wanted.version, wanted.depth),
        *(wanted.kind, wanted.exact),
    )
    assert arrived.count == (wanted.count or wanted.depth)


FOUND = FoundRows(
    np.array([[0.9, 0.5, -np.inf], [0.5, 0.5, -0.1]], np.float32),
    np.array([[5, 4, -1], [1, 39, 0]]),
    [np.array([np.nan, 0.5], np.float32), np.zeros(0, np.float32)],
)
WANTED = search(named=[np.array([4, 9]), np.zeros(0, np.int64)], count=3)


def test_what_was_found_is_received_as_it_was_sent(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    pair[0].sendall(messages.frame(messages.answer_of(FOUND)))
    answer = messages.answer_in(received(pair[1]) or b"")
    arrived = messages.found_of(answer, WANTED)
    for one, other in zip(arrived[:2], FOUND[:2], strict=True):
        assert np.array_equal(one, other)
    for cosines, sent in zip(arrived.cosines, FOUND.cosines, strict=True):
        assert np.array_equal(cosines, sent, equal_nan=True)


def changed(name: str, place: tuple[int, int], value: float) -> Found:
    """An answer with another number at one place."""
    array = getattr(FOUND, name).copy()
    array[place] = value
    return messages.answer_of(FOUND._replace(**{name: array}))


def with_bytes(**sent: Any) -> Found:
    answer = messages.answer_of(FOUND)
    return Found(
        similarities=sent.get("similarities", answer.similarities),
        rows=sent.get("rows", answer.rows),
        cosines=sent.get("cosines", answer.cosines),
    )


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (changed("rows", (0, 0), 40), "rows beyond the 40"),
        (changed("rows", (1, 2), -2), "rows beyond"),
        (changed("rows", (1, 2), -1), "rows beyond"),  # but its similarity is that of a row
        (changed("rows", (0, 2), 2**62), "rows beyond"),
        (changed("similarities", (0, 0), np.nan), "not finite"),
        (changed("similarities", (0, 0), np.inf), "not finite"),
        (changed("similarities", (0, 1), 0.95), "descending"),
        (changed("similarities", (1, 1), np.nan), "descending"),
        (with_bytes(similarities=b""), "0 bytes of similarities"),
        (with_bytes(similarities=b"abc"), "3 bytes of similarities"),
        (with_bytes(rows=np.zeros(7, np.int64).tobytes()), "56 bytes of rows"),
        (with_bytes(rows=np.zeros(6, np.int32).tobytes()), "24 bytes of rows"),
        (with_bytes(cosines=[]), "cosines of 0 queries, not 2"),
        (with_bytes(cosines=[b"", b""]), "0 bytes of cosines"),
        (Keys(places=b"", keys=b""), "answered by Keys"),
        (messages.Welcome(version=0), "answered by Welcome"),
    ],
)
def test_an_answer_that_no_shard_can_give_is_refused(answer: messages.Answer, why: str) -> None:
    with pytest.raises(WrongAnswer, match=why):
        messages.found_of(answer, WANTED)


@pytest.mark.parametrize(
    ("places", "keys", "why"),
    [
        ([0, 5], 2, "not among 5"),
        ([-1, 0], 2, "not among 5"),
        ([1, 1], 2, "not in order"),
        ([2, 1], 2, "not in order"),
        ([0, 1], 3, "of keys instead of"),
    ],
)
def test_keys_of_rows_that_nobody_asked_for_are_refused(
    places: list[int], keys: int, why: str
) -> None:
    answer = messages.keys_of(np.array(places), np.zeros((keys, DIMENSION), np.float16))
    with pytest.raises(WrongAnswer, match=why):
        messages.found_keys_of(answer, asked=5, dimension=DIMENSION)
    with pytest.raises(WrongAnswer, match="answered by Status"):
        found = Status(version=0, rows=0, built=True)
        messages.found_keys_of(found, asked=5, dimension=DIMENSION)


def test_keys_are_received_as_they_were_sent() -> None:
    keys = units(2, DIMENSION).astype(np.float16)
    answer = messages.keys_of(np.array([0, 4]), keys)
    places, arrived = messages.found_keys_of(answer, asked=5, dimension=DIMENSION)
    assert places.tolist() == [0, 4] and np.array_equal(arrived, keys)


def test_the_end_between_two_questions_is_no_error(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    pair[0].close()
    assert received(pair[1]) is None


@pytest.mark.parametrize("sent", [b"\0\0", b"\0\0\0\x09abc"])
def test_an_end_within_a_question_is_an_error(
    pair: tuple[socket.socket, socket.socket], sent: bytes
) -> None:
    pair[0].sendall(sent)
    pair[0].close()
    with pytest.raises(OSError, match="within a message"):
        received(pair[1])


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x01a"])
def test_what_is_no_question_is_refused(
    pair: tuple[socket.socket, socket.socket], sent: bytes
) -> None:
    pair[0].sendall(sent)
    with pytest.raises(ValueError):
        messages.question_in(received(pair[1]) or b"")


@pytest.mark.parametrize("size", [messages.MOST_BYTES, messages.HELLO_BYTES + 1])
def test_a_length_alone_takes_no_memory(
    pair: tuple[socket.socket, socket.socket], size: int
) -> None:
    """It is what anyone can send. A `Hello` may not even announce more than it can have."""
    pair[0].sendall(struct.pack("!I", size) + b"x")
    pair[0].close()
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match="within a message"):
            received(pair[1])
        assert tracemalloc.get_traced_memory()[1] < 2 * 262_144
    finally:
        tracemalloc.stop()
    pair = socket.socketpair()
    with pair[0], pair[1]:
        pair[0].sendall(struct.pack("!I", size) + b"x")
        with pytest.raises(ValueError, match=f"{size} bytes is too long"):
            received(pair[1], most=messages.HELLO_BYTES)


def test_messages_that_arrive_together_or_byte_by_byte_are_the_same(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sent = messages.frame(messages.question_of(search())) * 3
    incoming, frames = messages.Incoming(), []
    for byte in range(len(sent)):
        pair[0].sendall(sent[byte : byte + 1])
        assert incoming.receive(pair[1])
        frames += incoming.frames()
    pair[0].sendall(sent)
    together = messages.Incoming()
    assert together.receive(pair[1])
    assert frames == list(together.frames()) and len(frames) == 3
    assert incoming.empty and together.empty


def hello(settings: EngineSettings = DEFAULTS, **more: Any) -> Hello:
    facts = {"bundle": "b", "log": "l", "index": 0, "count": 2, **more}
    return messages.hello_of(settings, **facts)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(EngineSettings)])
def test_shards_with_other_settings_have_another_name(field: str) -> None:
    """Unless only fronts use the setting, or it is computed from the machine."""
    others: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(("live_bytes", "click_half_life"), lambda _: 7),
        "device": lambda _: "cuda",
        "segments": lambda _: Path("elsewhere"),
        "write_share": lambda value: value / 2,
    }
    default = getattr(DEFAULTS, field)
    other = others.get(field, lambda value: not value if isinstance(value, bool) else value + 1)
    changed = dataclasses.replace(DEFAULTS, **{field: other(default)})
    same = field in messages.NOT_OF_SHARDS
    assert (messages.name_of(hello(changed)) == messages.name_of(hello())) is same
    assert (hello(changed) == hello()) is same


def test_the_name_of_a_shard_says_what_it_was_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    others = ({"bundle": "c"}, {"log": "m"}, {"index": 1}, {"count": 3})
    names = [messages.name_of(hello(**other)) for other in ({}, *others)]
    monkeypatch.setattr(messages, "version", lambda name: "0.2.0")
    names.append(messages.name_of(hello()))
    monkeypatch.setattr(messages, "PROTOCOL", messages.PROTOCOL + 1)
    names.append(messages.name_of(hello()))
    assert len({*names}) == len(names)
    assert messages.name_of(hello(secret="s")) == names[-1]  # it is made later, by the shard
