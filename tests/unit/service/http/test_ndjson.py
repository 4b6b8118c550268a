"""Bytes are split into the same lines in whatever pieces they arrive, with bounded memory."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http.ndjson import FREE_BYTES, Line, read_lines
from service.http.request_body import HeldBytes, Hold
from tests.support.asynchronous import on_a_loop

LIMIT = 12

alphabet = st.sampled_from(
    [b"\n", b"\r\n", b"\r", b" ", b"a", b"\xc3\xa9", b"\xff", b"\xef\xbb\xbf"]
)
contents = st.lists(alphabet | st.just(b"x" * LIMIT), max_size=30).map(b"".join)


async def pieces(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def hold(limit: int = 1_000_000) -> Hold:
    return Hold(HeldBytes(limit))


def lines(*chunks: bytes, limit: int = LIMIT) -> list[tuple[int, bytes | None]]:
    async def read() -> list[Line]:
        return [line async for line in read_lines(pieces(chunks), limit=limit, hold=hold())]

    return [(line.number, line.content) for line in asyncio.run(read())]


def split_in_memory(content: bytes) -> list[tuple[int, bytes | None]]:
    """A slow and simple reader for a stream that fits into memory."""
    found = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        shown = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if len(line) > LIMIT:
            found.append((number, None))
        elif shown.strip(b" \t\r"):
            found.append((number, shown))
    return found


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", []),
        (b"a\nb\n", [(1, b"a"), (2, b"b")]),
        (b"a\nb", [(1, b"a"), (2, b"b")]),
        (b"a\r\nb\r\n", [(1, b"a\r"), (2, b"b\r")]),  # white space in JSON
        (b"a\n\n \t\r\nb", [(1, b"a"), (4, b"b")]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", [(1, b"a"), (2, b"\xef\xbb\xbfb")]),
        (b"\xef\xbb\xbf\na", [(2, b"a")]),
        (b"\xff\n", [(1, b"\xff")]),
        ("a\u2028b\x0bc\n".encode(), [(1, "a\u2028b\x0bc".encode())]),
        (b"x" * 12 + b"\n" + b"x" * 13 + b"\na", [(1, b"x" * 12), (2, None), (3, b"a")]),
        (b"x" * 100, [(1, None)]),
    ],
)
def test_lines_and_their_numbers(content: bytes, expected: list[tuple[int, bytes | None]]) -> None:
    assert lines(content) == expected == split_in_memory(content)


@given(content=contents, data=st.data())
def test_any_chunking_gives_the_same_lines(content: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=10).map(sorted))
    bounds = [0, *cuts, len(content)]
    chunks = [content[start:stop] for start, stop in pairwise(bounds)]
    assert lines(*chunks) == split_in_memory(content)


@on_a_loop
async def test_a_line_is_returned_before_the_next_chunk_is_read() -> None:
    asked = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal asked
        while True:
            asked += 1
            yield b"a\n"

    async for line in read_lines(counted(), limit=LIMIT, hold=hold()):
        assert asked == line.number
        if asked == 100:
            break


def test_the_rest_of_a_long_line_is_not_kept() -> None:
    tail = b"\n" + b"a"
    assert lines(*[b"x" * 1000] * 1000, tail, limit=1000) == [(1, None), (2, b"a")]


def test_a_long_line_counts_until_it_is_dropped_and_is_refused_where_nothing_is_left() -> None:
    long, held = b"x" * 40_000, hold(30_000)

    async def read() -> list[Line]:
        chunks = pieces(
            [long[:30_000], long[30_000:] + b"\n", long + b"\n", b" " * 20_000 + b"\na"]
        )
        return [line async for line in read_lines(chunks, limit=10**6, hold=held)]

    first, second, last = asyncio.run(read())
    assert (first.content, first.held) == (long, 40_000 - FREE_BYTES)
    assert (second.content, second.crowded, second.held) == (None, True, 0)
    assert (last.number, last.content) == (4, b"a")
    assert held.size == first.held


def test_very_many_blank_lines_are_counted() -> None:
    part = b"\n" * 50_000 + b"x\n" + b" \r\n\t\n" * 50_000 + b"y\n" + b"\n" * 50_000
    numbers = [number for number, _ in lines(part, part)]
    assert numbers == [50_001, 150_002, 250_003, 350_004]
