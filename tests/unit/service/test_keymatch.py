"""Each command imports only what it needs and describes itself; `keymatch key` makes a key."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from service.keymatch import EXPORT, LAB, USERS, commands_of, keymatch
from tests.support.commands import one_line, status_of

ROOT = Path(__file__).parents[3]
PRINT_MODULES = """
import sys
from contextlib import suppress
from service.command_line import run
from service.keymatch import keymatch

for command in sys.argv[1:]:
    with suppress(SystemExit):
        run(keymatch(), command.split())
    print("modules:", *sys.modules)
"""
OF_TRAINING = {"torch", "transformers", "sentence_transformers", "accelerate", "lightgbm"}
OF_SERVING = {"faiss", "onnxruntime", "fastapi", "uvicorn", "sqlalchemy"}
HEAVY = {"numpy", "scipy", "pydantic", "training", "export", *OF_SERVING, *OF_TRAINING}
NO_SERVER = {"fastapi", "uvicorn", "sqlalchemy", *OF_TRAINING}
# Commands that one process runs one after the other, and the packages that none may import.
NOT_LOADED = [
    (("--help", "lab --help", "export --help", "serve --help", "check --help", "snapshot --help",
      "key --help", "key --name shop --scope read"), HEAVY),
    (("log --help",), {"scipy", "training", *OF_TRAINING}),
    (("data pairs --help", "fit --help"), NO_SERVER),
    (("score --help", "export bundle --help", "lab train --help"), OF_TRAINING),
]  # fmt: skip


@pytest.mark.parametrize(("commands", "heavy"), NOT_LOADED, ids=range(len(NOT_LOADED)))
def test_commands_load_only_what_they_need(commands: tuple[str, ...], heavy: set[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PRINT_MODULES, *commands],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert ended.returncode == 0, ended.stderr
    loaded = [line for line in ended.stdout.splitlines() if line.startswith("modules:")]
    for command, modules in zip(commands, loaded, strict=True):
        assert not heavy & set(modules.split()), command


def test_each_command_has_one_line_in_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    for words, commands in ((), USERS), (("export",), EXPORT), (("lab",), LAB):
        assert status_of(keymatch(), *words, "--help") == 0
        lines = capsys.readouterr().out.splitlines()
        for name, (_, summary) in commands.items():
            [row] = [line for line in lines if line.startswith(f"│ {name} ")]
            assert summary in row


def test_help_of_a_command_is_its_whole_docstring(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert status_of(keymatch(), "key", "--help") == 0
    said = capsys.readouterr().out
    # The terminal's width breaks the lines, not the docstring.
    assert "names; the service reads it at its start. The key is shown once and stored" in said


def test_key_and_line_belong_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(keymatch(), "key", "--name", "shop", "--scope", "write, read") == 0
    printed = capsys.readouterr()
    shown = printed.err.strip().rsplit(": ", 1)[1]
    assert printed.out == f"shop:read,write:{hashlib.sha256(shown.encode()).hexdigest()}\n"


@pytest.mark.parametrize(("scopes", "said"), [("read,wrte", "'wrte' is no scope"), (",", "''")])
def test_a_wrong_scope_is_named(capsys: pytest.CaptureFixture[str], scopes: str, said: str) -> None:
    status = status_of(keymatch(), "key", "--name", "shop", "--scope", scopes)
    complaint = one_line(status, capsys.readouterr().err)
    assert said in complaint
    assert "read, write, admin, metrics" in complaint


def test_every_package_has_its_commands() -> None:
    assert set(commands_of("service")) == set(USERS) - {"data", "fit", "score"}
    assert set(commands_of("export")) == set(EXPORT)
    assert set(commands_of("training")) == {"data", "fit", "score", *LAB}


def test_a_shell_completes_commands_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # .bashrc is written there
    script = tmp_path / "keymatch"
    assert status_of(keymatch(), "--install-completion", "--shell", "bash", "--output", script) == 0
    for words, expected in (
        (("ser",), {"serve"}),
        (("lab", "tr"), {"train"}),
        (("fit", "--min"), {"--minutes"}),
    ):
        line = " ".join(("keymatch", *words))
        asked = (
            f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)};"
            f" COMP_LINE='{line}'; COMP_POINT={len(line)}; COMP_TYPE=9;"
            ' $(complete -p keymatch | sed "s/.*-F \\([^ ]*\\).*/\\1/"); echo "${COMPREPLY[@]}"'
        )
        said = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
        assert set(said.stdout.split()) == expected, said.stderr
