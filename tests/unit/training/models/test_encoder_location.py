"""An encoder's name is quickly checked: as a folder, as a package, and on the hub."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from time import monotonic

import pytest

from service.core.errors import InvalidInput
from training.models.encoder_location import Location, find_encoder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    """A fake Hugging Face hub that has no models."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()

        def log_message(self, *message: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address(server))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def address(server: HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def refusal(name: str) -> str:
    begun = monotonic()
    with pytest.raises(InvalidInput) as refused:
        find_encoder(name)
    assert monotonic() - begun < 10
    return str(refused.value)


def test_a_folder_with_a_model_is_found(model: Path) -> None:
    assert find_encoder(str(model)) == Location(name=str(model))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".", "has neither modules.json nor config.json"),
        ("package:no-such-package", "pip install no-such-package"),
        *(
            (name, "has not the form of a hub name")
            for name in ("./nowhere", "a/b/c", "two words", "/nowhere", "a//b")
        ),
    ],
)
def test_what_has_no_model_is_refused(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refusal(name)


def test_a_model_that_the_hub_does_not_have_is_refused(hub: HTTPServer) -> None:
    said = refusal("nobody/nothing")
    assert f"there is no such folder, and {address(hub)} shows you no such model" in said


def test_a_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached: give a folder" in refusal("nobody/nothing")
