"""Whatever bytes a stream of labels has: each line is answered once, or the stream says why not."""

from itertools import pairwise

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.errors import LogError
from tests.support.http.label_stream import put

LINES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=10).map(lambda text: orjson.dumps({"text": text})),
    st.sampled_from([b"", b" \t", b"\r", b"{}", b'{"text":"a"}\r', b"\xef\xbb\xbf", b"null", b"["]),
    st.integers(0, 200).map(lambda size: b'{"text": "%s"}' % (b"x" * size)),
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """The bytes of a stream, and the pieces in which they arrive."""
    content = b"\n".join(draw(st.lists(LINES, max_size=12))) + draw(st.sampled_from([b"", b"\n"]))
    cuts = draw(st.lists(st.integers(0, len(content)), max_size=6).map(sorted))
    bounds = [0, *cuts, len(content)]
    pieces = [content[start:end] for start, end in pairwise(bounds) if start < end]
    return content, pieces


def numbers_of_lines(content: bytes) -> list[int]:
    """The numbers of all lines that are not blank, by the slow and obvious way."""
    lines = content.split(b"\n")
    lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
    return [number for number, line in enumerate(lines, 1) if line.strip(b" \t\r")]


@settings(max_examples=200)
@given(stream=streams(), body_bytes=st.sampled_from([30, 100, 4_194_304]))
def test_every_line_has_one_answer(stream: tuple[bytes, list[bytes]], body_bytes: int) -> None:
    content, pieces = stream
    writer, client = put(pieces, body_bytes=body_bytes)
    assert client.ended
    assert [answer["line"] for answer in client.answers] == numbers_of_lines(content)
    assert all(("id" in answer) != ("error" in answer) for answer in client.answers)
    assert len(writer.applied) == sum("id" in answer for answer in client.answers)


@settings(max_examples=100)
@given(stream=streams(), before=st.integers(0, 2))
def test_after_a_failure_the_stream_says_where_it_stopped(
    stream: tuple[bytes, list[bytes]], before: int
) -> None:
    content, pieces = stream
    lines = [*[b'{"text": "first"}\n'] * before, *pieces]
    writer, client = put(lines, {1: LogError("no disk")}, body_bytes=4_194_304)
    assert client.ended
    numbers = numbers_of_lines(b'{"text": "first"}\n' * before + content)
    answered = [answer["line"] for answer in client.answers if "line" in answer]
    if not writer.calls:  # no line held a label
        assert answered == numbers
        return
    assert client.answers[-1]["stopped_after"] == answered[-1]
    assert answered == [number for number in numbers if number <= answered[-1]]
    assert all("error" in answer for answer in client.answers)
