"""Questions and answers are received as they were sent, and nonsense is refused."""

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from service.core.memory.shards import EVERYTHING, FoundRows, KeySearch, Scope
from service.core.tenant import Tenant
from service.core.types import RowKind
from service.shards import messages
from tests.support.label_filters import FILTERS
from tests.support.vectors import units

DIMENSION = 8


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


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
    asked = messages.receive_question(pair[1])
    assert isinstance(asked, messages.Search)
    received = messages.search_of(asked, dimension=DIMENSION)
    assert received.scope == wanted.scope
    assert np.array_equal(received.queries, wanted.queries)
    assert [rows.tolist() for rows in received.named] == [rows.tolist() for rows in wanted.named]
    assert (received.version, received.depth, received.kind, received.exact) == (
        *(wanted.version, wanted.depth),
        *(wanted.kind, wanted.exact),
    )
    assert received.count == (wanted.count or wanted.depth)


def test_what_was_found_is_received_as_it_was_sent(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    found = FoundRows(
        units(2, 3), np.array([[5, 4, -1], [1, 2, 3]]), [np.array([np.nan, 0.5], np.float32)] * 2
    )
    pair[0].sendall(messages.frame(messages.answer_of(found)))
    answer = messages.receive_answer(pair[1])
    assert isinstance(answer, messages.Found)
    received = messages.found_of(answer, count=3)
    for one, other in zip(received[:2], found[:2], strict=True):
        assert np.array_equal(one, other)
    for cosines, sent in zip(received.cosines, found.cosines, strict=True):
        assert np.array_equal(cosines, sent, equal_nan=True)


def test_the_end_between_two_questions_is_no_error(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    pair[0].close()
    assert messages.receive_question(pair[1]) is None


@pytest.mark.parametrize("sent", [b"\0\0", b"\0\0\0\x09abc"])
def test_an_end_within_a_question_is_an_error(
    pair: tuple[socket.socket, socket.socket], sent: bytes
) -> None:
    pair[0].sendall(sent)
    pair[0].close()
    with pytest.raises(OSError, match="within a message"):
        messages.receive_question(pair[1])


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x01a"])
def test_what_is_no_question_is_refused(
    pair: tuple[socket.socket, socket.socket], sent: bytes
) -> None:
    pair[0].sendall(sent)
    with pytest.raises(ValueError):
        messages.receive_question(pair[1])
