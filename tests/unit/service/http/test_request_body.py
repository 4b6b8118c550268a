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
from prometheus_client import CollectorRegistry, Gauge

from service.core.errors import MalformedRequest, TooManyBytes, UnsupportedCoding
from service.http.request_body import (
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


def test_the_gauge_follows() -> None:
    registry = CollectorRegistry()
    held = HeldBytes(100, Gauge("held", "held", registry=registry))
    hold = Hold(held)
    hold.count(150)
    assert registry.get_sample_value("held") == 150
    hold.release()
    assert registry.get_sample_value("held") == 0


def test_calls_come_one_after_the_other_with_a_rest_between_them() -> None:
    spans: list[tuple[float, float]] = []

    def work() -> str:
        start = time.monotonic()
        time.sleep(0.05)
        spans.append((start, time.monotonic()))
        return threading.current_thread().name

    async def run() -> list[str]:
        thread = SideThread()
        return await asyncio.gather(*(thread.run_if(True, work) for _ in range(3)))

    assert len(set(asyncio.run(run()))) == 1
    rests = [after[0] - before[1] for before, after in pairwise(spans)]
    assert all(rest >= 0.04 for rest in rests)


def test_an_error_is_raised_where_the_call_is_awaited() -> None:
    async def run() -> None:
        await SideThread().run_if(True, int, "x")

    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(run())


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"headers": [(b"host", b"a"), *headers]}


def gunzipped(*chunks: bytes) -> bytes:
    gunzip = Gunzip()
    pieces = [piece for chunk in chunks for piece in gunzip.pieces(chunk)]
    gunzip.end()
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    return b"".join(pieces)


@pytest.mark.parametrize("value", [b"gzip", b"GZip", b" x-gzip "])
def test_gzip_is_known_by_its_names(value: bytes) -> None:
    assert is_gzip(scope((b"content-encoding", value)))


@pytest.mark.parametrize("headers", [(), [(b"content-encoding", b"identity")],
                                     [(b"content-encoding", b"")],
                                     [(b"transfer-encoding", b"Chunked")]])  # fmt: skip
def test_a_plain_body_is_left_alone(headers: list[tuple[bytes, bytes]]) -> None:
    assert not is_gzip(scope(*headers))


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


def test_an_end_before_the_end_is_refused() -> None:
    whole = gzip.compress(b"a label" * 100)
    for cut in (1, 9, 15, len(whole) - 9, len(whole) - 1):
        with pytest.raises(MalformedRequest, match="ends before its gzip does"):
            gunzipped(whole[:cut])


PACKED = gzip.compress(b"{}", mtime=0)  # parameters must not depend on the clock


@pytest.mark.parametrize(
    "content",
    [b"{}", zlib.compress(b"{}"), PACKED + b"{}", PACKED[:-8] + bytes(8)],
    ids=["plain", "zlib", "with a tail", "of another checksum"],
)
def test_what_is_no_gzip_is_refused(content: bytes) -> None:
    with pytest.raises(MalformedRequest, match="not gzip"):
        gunzipped(content)


def test_members_without_content_are_bounded() -> None:
    with pytest.raises(MalformedRequest, match="more than 10 gzip members"):
        list(Gunzip(most_members=10).pieces(gzip.compress(b"") * 11))


def test_nothing_is_decompressed_before_it_is_asked_for() -> None:
    pieces = Gunzip().pieces(gzip.compress(bytes(100_000_000)))
    assert len(next(pieces)) == PIECE_BYTES
