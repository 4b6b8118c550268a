"""POST /labels as a stream, to a server process over a socket."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from service.http.label_stream import LineAnswer
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.http.streaming import streaming
from tests.support.serving import LocalService, ServerProcess, server_process, wait_for

NDJSON = {"content-type": "application/x-ndjson"}
STATUS = Path("/proc/self/status")
MEGABYTE = 1_000_000


def ndjson(*labels: dict[str, Any]) -> bytes:
    return b"".join(orjson.dumps(label) + b"\n" for label in labels)


def post(server: ServerProcess, content: bytes | Iterator[bytes], **headers: str) -> httpx.Response:
    return server.client.post("/labels", content=content, headers={**NDJSON, **headers})


def answers(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["x-request-id"]
    return [orjson.loads(line) for line in answer.content.splitlines()]


def peak_bytes(server: ServerProcess) -> int:
    """Return the peak memory of the server's process."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peak) * 1024


@pytest.fixture(scope="module")
def server(
    tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server shared by tests that use different labels; it must not log a defect."""
    folder = tmp_path_factory.mktemp("server")
    settings, log = folder / "keymatch.toml", folder / "stderr"
    settings.write_text("[limits]\nmetadata_bytes = 65_536\n")
    options = ("--config", str(settings))
    with server_process(tiny_bundle_folder, folder / "state", log, *options) as server:
        yield server
    assert b"Traceback" not in log.read_bytes()
    assert not server.logged("defect")


def test_a_client_that_sends_all_before_it_reads_gets_every_answer(server: ServerProcess) -> None:
    labels = [{"text": f"label {number}", "queries": ["a query"]} for number in range(5000)]
    found = answers(post(server, ndjson(*labels)))
    assert [answer["line"] for answer in found] == list(range(1, 5001))
    assert [answer["id"] for answer in found] == [label["text"] for label in labels]
    assert {answer["status"] for answer in found} == {"created"}
    assert [answer["version"] for answer in found] == sorted(answer["version"] for answer in found)
    assert_answer(found[0], LineAnswer)
    shown = server.client.get("/labels/label 4999").json()
    assert (shown["queries"], shown["version"]) == (["a query"], found[-1]["version"])


def test_a_trickling_client_gets_each_answer_before_its_next_line(server: ServerProcess) -> None:
    with streaming(server.port, request_id="trickle") as stream:
        for number in range(1, 6):
            stream.send(ndjson({"text": f"trickle {number}"}))
            answer = stream.read()
            assert (answer["line"], answer["status"]) == (number, "created")
            shown = server.client.get(f"/labels/trickle {number}").json()
            assert shown["version"] == answer["version"]
        assert (stream.answer.status, stream.answer.headers["x-request-id"]) == (200, "trickle")
        assert stream.answer.headers["connection"] == "close"
        stream.end()
        assert stream.rest() == []


def test_a_client_may_leave_and_only_its_answered_lines_stand(server: ServerProcess) -> None:
    with streaming(server.port, request_id="leaves") as stream:
        stream.send(ndjson({"text": "whole"}) + b'{"text": "cut')
        assert stream.read()["id"] == "whole"
        stream.send(b'"}')
    wait_for(lambda: [one for one in server.logged("request") if one["request_id"] == "leaves"])
    assert server.client.get("/labels/whole").status_code == 200
    assert server.client.get("/labels/cut").status_code == 404
    content = ndjson(*({"text": f"leaver {number}"} for number in range(3000)))
    for size in (0, 1, 100, 50_000, len(content)):
        with streaming(server.port) as stream:
            stream.send(content[:size] or b"\n")
    assert len(answers(post(server, content))) == 3000


def test_sigterm_ends_a_stream_with_the_line_where_it_stopped(
    start: Callable[..., ServerProcess],
) -> None:
    server = start()
    with streaming(server.port) as stream:
        stream.send(ndjson({"text": "a"}, {"text": "b"}))
        assert [stream.read()["line"], stream.read()["line"]] == [1, 2]
        server.process.terminate()
        end = stream.read()
        assert (end["stopped_after"], end["error"]["status"]) == (2, 503)
        stream.end()
        assert stream.rest() == []
        assert server.process.wait(60) == 0


@pytest.mark.skipif(not STATUS.exists(), reason="needs Linux's account of memory")
def test_memory_stays_bounded_while_a_long_stream_passes(server: ServerProcess) -> None:
    line = ndjson({"text": "a", "metadata": {str(number): "x" * 1000 for number in range(60)}})
    found = answers(post(server, line * 20))  # allocates what parsing always needs
    before = peak_bytes(server)
    found = answers(post(server, (line * 20 for _ in range(150))))
    assert [answer["status"] for answer in found] == ["unchanged"] * 3000
    skipped = answers(post(server, (b"x" * MEGABYTE for _ in range(180))))
    assert [answer["error"]["status"] for answer in skipped] == [413]
    assert peak_bytes(server) - before < 60 * MEGABYTE  # 360 MB were sent


def test_an_idempotency_key_is_refused_with_a_reason(reader: LocalService) -> None:
    headers = {**NDJSON, "idempotency-key": "1"}
    answer = reader.post("/labels", content=ndjson({"text": "a"}), headers=headers)
    problem = assert_problem(answer, 422, field="Idempotency-Key")
    assert "sent again" in problem["detail"]


def test_the_content_type_and_utf8_are_required(reader: LocalService) -> None:
    for other in ("x-ndjson; charset=latin-1", "jsonl", "ndjson"):
        headers = {"content-type": f"application/{other}"}
        answer = reader.post("/labels", content=ndjson({"text": "a"}), headers=headers)
        problem = assert_problem(answer, 415)
        assert problem["detail"] == "send application/json or application/x-ndjson in UTF-8"
    for charset in ("utf-8", "UTF8", '"utf-8"'):
        headers = {"content-type": f"application/x-ndjson; charset={charset}"}
        assert answers(reader.post("/labels", content=b"\n", headers=headers)) == []


def test_a_service_that_is_not_ready_refuses_the_whole_stream(
    serve: Callable[..., LocalService],
) -> None:
    service = serve()
    service.engine.close()
    answer = service.post("/labels", content=ndjson({"text": "a"}), headers=NDJSON)
    assert_problem(answer, 503)
