"""Request bodies: their common limit of bytes, gzip in pieces, and the thread for large ones."""

import asyncio
import gzip
import threading
import time
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.errors import MalformedRequest, TooManyBytes, UnsupportedCoding
from service.core.processes.quick_switches import QuickSwitches
from service.http.request_body import (
    MOST_MEMBERS,
    PIECE_BYTES,
    Gunzip,
    HeldBytes,
    Hold,
    SideThread,
    is_gzip,
)


def test_all_requests_share_one_limit() -> None:
    held = HeldBytes(100)
    first, second = Hold(held), Hold(held)
    first.add(60)
    with pytest.raises(TooManyBytes) as refused:
        second.add(41)
    assert refused.value.retry_after > 0
    second.add(40)
    assert first.crowded
    first.release()
    assert (held.total, first.size, first.crowded) == (40, 0, False)


def test_a_hold_changes_to_what_it_now_holds() -> None:
    held = HeldBytes(100)
    hold = Hold(held)
    hold.add(80)
    hold.become(30)
    assert held.total == 30
    with pytest.raises(TooManyBytes):
        hold.become(101)
    assert held.total == 30
    hold.become(101, must=True)
    assert held.total == 101
    assert not hold.take(1)


def test_calls_come_one_after_the_other_with_a_rest_between_them() -> None:
    spans: list[tuple[float, float]] = []

    def work() -> str:
        start = time.monotonic()
        time.sleep(0.05)
        spans.append((start, time.monotonic()))
        return threading.current_thread().name

    async def run() -> list[str]:
        thread = SideThread(QuickSwitches())
        return await asyncio.gather(*(thread.run_if(True, work) for _ in range(3)))

    assert len(set(asyncio.run(run()))) == 1
    rests = [after[0] - before[1] for before, after in pairwise(spans)]
    assert all(rest >= 0.04 for rest in rests)


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"headers": [(b"host", b"a"), *headers]}


def gunzipped(*chunks: bytes) -> bytes:
    gunzip = Gunzip(most_members=MOST_MEMBERS)
    pieces = [piece for chunk in chunks for piece in gunzip.pieces(chunk)]
    gunzip.end()
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    return b"".join(pieces)


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        *((b"content-encoding", value, True) for value in (b"gzip", b"GZip", b" x-gzip ")),
        *((b"content-encoding", value, False) for value in (b"identity", b"")),
        (b"transfer-encoding", b"Chunked", False),
        (b"accept", b"*/*", False),
    ],
)
def test_gzip_is_known_by_its_names(name: bytes, value: bytes, known: bool) -> None:
    assert is_gzip(scope((name, value))) is known


@pytest.mark.parametrize("value", [b"br", b"deflate", b"gzip, gzip", b"identity, gzip", b"\xff"])
def test_another_coding_is_refused_by_the_name_of_its_header(value: bytes) -> None:
    with pytest.raises(UnsupportedCoding, match=r"^Content-Encoding is not read but for 'gzip'"):
        is_gzip(scope((b"content-encoding", value)))
    with pytest.raises(UnsupportedCoding, match=r"^Content-Encoding"):  # two headers, two codings
        is_gzip(scope((b"content-encoding", b"gzip"), (b"content-encoding", b"gzip")))
    with pytest.raises(UnsupportedCoding, match=r"^Transfer-Encoding"):
        is_gzip(scope((b"transfer-encoding", value)))


@given(parts=st.lists(st.binary(max_size=100_000), max_size=4), cut=st.integers(1, 5_000))
def test_members_are_joined_however_they_are_cut(parts: list[bytes], cut: int) -> None:
    content = b"".join(map(gzip.compress, parts))
    chunks = [content[start : start + cut] for start in range(0, len(content), cut)]
    assert gunzipped(*chunks) == b"".join(parts)


@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 40 * PIECE_BYTES])
def test_pieces_lose_nothing_at_their_bounds(size: int) -> None:
    assert gunzipped(gzip.compress(bytes(size))) == bytes(size)


# Parameters must not depend on the clock.
PACKED = gzip.compress(b"{}", mtime=0)
LONG = gzip.compress(b"a label" * 100, mtime=0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((LONG[:cut], "ends before its gzip does") for cut in (1, 9, 15, -9, -1)),
        *((wrong, "not gzip") for wrong in (b"{}", zlib.compress(b"{}"), PACKED + b"{}")),
        (PACKED[:-8] + bytes(8), "not gzip"),  # another checksum
        (gzip.compress(b"", mtime=0) * (MOST_MEMBERS + 1), "more than 1024 gzip members"),
    ],
)
def test_what_is_no_whole_gzip_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(MalformedRequest, match=said):
        gunzipped(content)


def test_nothing_is_decompressed_before_it_is_asked_for() -> None:
    pieces = Gunzip().pieces(gzip.compress(bytes(100_000_000)))
    assert len(next(pieces)) == PIECE_BYTES
