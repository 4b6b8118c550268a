"""`python -m service`: every mistake is a non-zero exit and one clear line on stderr."""

import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.__main__ import app
from service.server import launcher
from tests.support.commands import Refused, complaint, run, status_of

PORT = ("--port", "0")


@pytest.fixture
def places(tiny_bundle_folder: Path, tmp_path: Path) -> tuple[object, ...]:
    """The required options of `serve`."""
    return ("--bundle", tiny_bundle_folder, "--state", tmp_path / "state")


@pytest.fixture
def refused_here(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refused]:
    """`refused` for `serve`, without its changes to this process: logs, signals, environment."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")  # what a supervisor sets ends with the test
    for name in ("configure_logs", "write_logs_at_once"):
        monkeypatch.setattr(launcher, name, lambda **_how: None)
    hangup = signal.getsignal(signal.SIGHUP)
    yield refused
    signal.signal(signal.SIGHUP, hangup)


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(app, "serve", "--help") == 0
    said = capsys.readouterr().out
    for option in (
        "--bundle", "--state", "--bundles", "--host", "--port", "--workers", "--config",
        "--allow-anonymous", "--access-log", "KEYMATCH_API_KEYS", "KEYMATCH_JWKS",
    ):  # fmt: skip
        assert option in said


def test_check_answers_from_a_whole_bundle(
    tiny_bundle_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(app, "check", "--bundle", tiny_bundle_folder) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "8 instances and 6 labels of outdoor goods" in said.out
    assert "'hiking boots' -> 'hiking boots'" in said.out


def test_a_missing_bundle_is_named(refused_here: Refused, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for command in (("check",), ("serve", "--state", tmp_path / "state", *PORT)):
        said = refused_here(app, *command, "--bundle", nowhere)
        assert said == f"{nowhere}/manifest.json is missing: {nowhere} is not a bundle"


def test_an_unusable_state_folder_is_named_before_a_worker_starts(
    refused_here: Refused, tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    state = tmp_path / "file"
    state.touch()
    places = ("--bundle", tiny_bundle_folder, "--state", state, *PORT, "--workers", 2)
    said = refused_here(app, "serve", *places)
    assert said == f"state folder {state} cannot be used: File exists"


@pytest.mark.parametrize("name", ["keys.npy", "labels/texts.bin", "manifest.json"])
def test_an_altered_file_is_named(
    refused: Refused, tiny_bundle_folder: Path, tmp_path: Path, name: str
) -> None:
    altered = tmp_path / "altered"
    shutil.copytree(tiny_bundle_folder, altered)
    content = bytearray((altered / name).read_bytes())
    content[len(content) // 2] ^= 1
    (altered / name).write_bytes(content)
    assert str(altered / name) in refused(app, "check", "--bundle", altered)
    if name != "keys.npy":
        return
    ended = run("service", "serve", "--bundle", altered, "--state", tmp_path / "state", *PORT)
    assert str(altered / name) in complaint(ended)
    assert "startup" not in ended.stderr
    assert '"ready"' not in ended.stderr


def test_wrong_arguments_are_named(refused: Refused, places: tuple[object, ...]) -> None:
    assert "--wrokers" in complaint(run("service", "serve", *places, "--wrokers", "2"))
    assert "many" in refused(app, "serve", *places, "--workers", "many")
    assert "--bundle" in refused(app, "serve")
    assert "sreve" in refused(app, "sreve")
    assert "workers" in refused(app, "serve", *places, "--workers", "0")
    assert "server.port" in refused(app, "serve", *places, "--port", "65536")


def test_an_address_that_cannot_be_listened_on_is_named(
    refused_here: Refused, places: tuple[object, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused_here(app, "serve", *places, "--workers", "1", "--port", port)
    assert said.startswith(f"cannot listen on 127.0.0.1 port {port}: Address already in use")
    elsewhere = ("--workers", "1", "--host", "192.0.2.1", "--allow-anonymous")
    said = refused_here(app, "serve", *places, *PORT, *elsewhere)
    assert said.startswith("cannot listen on 192.0.2.1 port 0: ")


def test_an_unknown_key_and_limits_beyond_the_memory_are_refused(
    refused_here: Refused, places: tuple[object, ...], tmp_path: Path
) -> None:
    config = tmp_path / "keymatch.toml"
    config.write_text("[limits]\nquerys = 1\n")
    said = refused_here(app, "serve", *places, "--config", config)
    assert said.startswith(f"{config}: limits.querys is unknown; known are body_bytes, queries, ")
    config.write_text(
        "[server]\nmemory_bytes = 3_000_000_000\n[engine]\nlive_bytes = 2_000_000_000"
    )
    said = refused_here(app, "serve", *places, *PORT, "--config", config)
    assert said.startswith("the memory that the settings allow adds up to ")
    assert "lower engine.live_bytes to at most" in said


def test_missing_keys_and_a_bad_keys_file_are_named(
    refused: Refused, places: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(app, "serve", *places, "--host", "0.0.0.0") == (
        "0.0.0.0 can be reached from other machines and no API keys are set: name a keys file"
        " in KEYMATCH_API_KEYS, or pass --allow-anonymous to serve everybody"
    )
    keys = tmp_path / "keys"
    keys.write_text("# comment\nshop:read:secret\n")
    monkeypatch.setenv("KEYMATCH_API_KEYS", str(keys))
    said = refused(app, "serve", *places)
    assert said == f"{keys}:2: the key's SHA-256 must be 64 hexadecimal digits"
    monkeypatch.setenv("KEYMATCH_API_KEYS", str(tmp_path / "none"))
    assert str(tmp_path / "none") in refused(app, "serve", *places)


def test_a_bad_key_set_and_settings_of_tokens_without_one_are_named(
    refused: Refused, places: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_set, config = tmp_path / "jwks.json", tmp_path / "keymatch.toml"
    config.write_text('[server]\ntoken_audience = "keymatch"\n')
    said = refused(app, "serve", *places, "--config", config)
    assert "name a JSON Web Key Set in KEYMATCH_JWKS" in said
    monkeypatch.setenv("KEYMATCH_JWKS", str(key_set))
    said = refused(app, "serve", *places)
    assert said == f"key set {key_set} cannot be read: No such file or directory"
    key_set.write_text("{}")
    said = refused(app, "serve", *places, "--config", config)
    assert said == f'key set {key_set}: expected {{"keys": [...]}}, a JSON Web Key Set'
