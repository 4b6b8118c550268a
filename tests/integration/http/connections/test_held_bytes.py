"""Bodies, streams and unread answers share one memory limit, even if clients never read."""

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from service.settings import Limits
from tests.support.http.server import HttpService, post, read_answer
from tests.support.waiting import wait_for

READERS = 12
FAT = {"metadata": {f"name {number}": "x" * 1_000 for number in range(16)}}
EXPLAINED = {
    "queries": ["fat tent"] * 16,
    "top_k": 50,
    "depth": 60,
    "explain": True,
    "deadline_ms": 60_000,
}
NDJSON = b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = b"POST /labels HTTP/1.1\r\nHost: localhost\r\n" + NDJSON
HELD = 'keymatch_rejected_total{reason="held_bytes"}'


@pytest.fixture
def limited(serve: Callable[..., HttpService]) -> Callable[..., HttpService]:
    """`limited(held_bytes=1)` starts a service with these limits, which is never overloaded."""
    return lambda **limits: serve(limits=Limits(**limits), queue_target_ms=60_000)


@pytest.fixture
def connections() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for connection in opened:
        connection.close()


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def held(service: HttpService) -> float:
    return service.value("keymatch_held_bytes")


def quiet(service: HttpService) -> bool:
    """Return whether the service is idle: its reserved bytes do not change."""
    before = held(service)
    time.sleep(0.3)
    return held(service) == before


def test_readers_that_never_read_hold_no_more_than_the_setting(
    limited: Callable[..., HttpService], connections: list[socket.socket]
) -> None:
    service = limited(held_bytes=30_000_000)
    labels = [{"text": f"fat tent {number}", **FAT} for number in range(50)]
    assert service.client.post("/labels", json={"labels": labels}).status_code == 200
    for _ in range(READERS):
        connection = service.connect()
        connection.sendall(post("/predict", EXPLAINED))
        connections.append(connection)
    wait_for(lambda: held(service) > 10_000_000 and quiet(service))
    assert held(service) <= 30_000_000
    assert service.client.get("/health/live").status_code == 200
    assert service.client.post("/predict", json={"queries": ["tent"]}).status_code == 200
    answers = [connection.recv(4096) for connection in connections]
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 429")]
    assert 2 <= len(refused) < READERS
    assert all(b"retry-after" in answer.lower() for answer in refused)
    wait_for(lambda: service.value(HELD) == len(refused))
    for connection in connections:
        connection.close()
    wait_for(lambda: held(service) == 0)
    assert service.client.post("/predict", json=EXPLAINED).status_code == 200


def test_streams_beyond_the_setting_are_refused(
    limited: Callable[..., HttpService], connections: list[socket.socket]
) -> None:
    service = limited(held_bytes=3_500_000)
    for _ in range(3):
        connections.append(service.connect())
        connections[-1].sendall(STREAM + chunk(b'{"text": "tent"}\n'))
        assert connections[-1].recv(65536).startswith(b"HTTP/1.1 200")
    late = service.connect()
    connections.append(late)
    late.sendall(STREAM + chunk(b'{"text": "tent"}\n'))
    status, headers, problem = read_answer(late)
    assert (status, problem["title"]) == (429, "Too many bytes held")
    assert int(headers["retry-after"]) > 0
    assert service.client.get("/health/ready").status_code == 200
    connections.pop(0).close()
    wait_for(lambda: held(service) < 2_500_000)
    again = service.client.post(
        "/labels", content=b'{"text": "boots"}\n', headers={"content-type": "application/x-ndjson"}
    )
    assert again.status_code == 200


def test_a_long_line_for_which_nothing_is_left_is_refused_alone(
    limited: Callable[..., HttpService],
) -> None:
    service = limited(held_bytes=1_100_000)
    long = b'{"text": "' + b" " * 100_000 + b'"}\n'
    answer = service.client.post(
        "/labels",
        content=b'{"text": "boots"}\n' + long + b'{"text": "tent"}\n',
        headers={"content-type": "application/x-ndjson"},
    )
    first, second, third = (line for line in answer.text.splitlines())
    assert '"version"' in first and '"version"' in third
    assert '"status":429' in second


def test_answers_of_streams_that_are_not_read_stop_the_stream_and_nothing_else(
    limited: Callable[..., HttpService], connections: list[socket.socket]
) -> None:
    service = limited(held_bytes=3_500_000)
    lines = chunk(b'{"text": 0}\n' * 20_000)  # each line gets an answer of 300 bytes
    for _ in range(3):
        connection = service.connect()
        connection.settimeout(0.2)
        connections.append(connection)
        try:
            connection.sendall(STREAM)
            for _ in range(20):
                connection.sendall(lines)
        except TimeoutError:
            pass
    assert held(service) < 3_500_000 + 3 * 300_000
    assert service.client.get("/health/live").status_code == 200
    asked = {"queries": ["tent"], "deadline_ms": 10_000}  # the loop still reads what was sent
    assert service.client.post("/predict", json=asked).status_code == 200


def test_bodies_that_are_not_complete_count(
    limited: Callable[..., HttpService], connections: list[socket.socket]
) -> None:
    service = limited(held_bytes=3_000_000)
    head = (
        b"POST /labels HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2000000\r\n\r\n"
    )
    first, second = service.connect(), service.connect()
    connections += [first, second]
    first.sendall(head + b" " * 1_900_000)
    wait_for(lambda: held(service) > 1_800_000)
    second.sendall(head + b" " * 1_999_999)
    assert read_answer(second)[0] == 429
    first.close()
    wait_for(lambda: held(service) == 0)
    large = {"labels": [{"text": f"tent {number}"} for number in range(1_000)]}
    assert service.client.post("/labels", json=large).status_code == 200


def test_a_page_ends_early_where_its_labels_are_large(limited: Callable[..., HttpService]) -> None:
    service = limited(metadata_bytes=100_000)
    fat = {"metadata": {f"name {number}": "x" * 1_024 for number in range(64)}}
    for start in (0, 50):
        labels = [{"text": f"tent {start + number:03}", **fat} for number in range(50)]
        assert service.client.post("/labels", json={"labels": labels}).status_code == 200
    page = service.client.get("/labels", params={"limit": 1000}).json()
    assert 50 < len(page["labels"]) < 100
    rest = service.client.get("/labels", params={"after": page["next"]}).json()
    assert len(page["labels"]) + len(rest["labels"]) == 100
    assert rest["next"] is None
