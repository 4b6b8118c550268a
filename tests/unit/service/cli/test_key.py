"""`keymatch key` prints a new key and the line of the key file that admits it."""

import hashlib

import pytest
from cyclopts import App

from service.cli.key import key
from tests.support.commands import one_line, status_of


@pytest.fixture
def app() -> App:
    command = App(name="service")
    command.command(key)
    return command


def test_key_and_line_belong_together(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(app, "key", "--name", "shop", "--scope", "write, read") == 0
    printed = capsys.readouterr()
    shown = printed.err.strip().rsplit(": ", 1)[1]
    assert printed.out == f"shop:read,write:{hashlib.sha256(shown.encode()).hexdigest()}\n"


@pytest.mark.parametrize(("scopes", "said"), [("read,wrte", "'wrte' is no scope"), (",", "''")])
def test_a_wrong_scope_is_named(
    app: App, capsys: pytest.CaptureFixture[str], scopes: str, said: str
) -> None:
    status = status_of(app, "key", "--name", "shop", "--scope", scopes)
    complaint = one_line(status, capsys.readouterr().err)
    assert said in complaint
    assert "read, write, admin, metrics" in complaint
