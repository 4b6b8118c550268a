"""Every line of service/examples.md runs in a shell, against real servers, and answers as shown."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.child_server import Server, free_port, stopped_afterwards

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "service/examples.md"
END = "end of the answer, exit status"
ELIDED = "..."
TOLERANCE = 0.01  # of a number with decimals; scores are shown rounded
KEYMATCH = f'#!/bin/sh\nexec {sys.executable} -m service.keymatch "$@"\n'


# The page ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A command as it is typed, and the answer that the page shows below it."""

    command: str
    shown: str

    @property
    def serves(self) -> bool:
        return "keymatch serve" in self.command


def steps(page: str) -> Iterator[Step]:
    """Yield the commands of a page in order: indented lines, each command after `$ `."""
    code = "\n".join(line[4:] for line in page.splitlines() if line.startswith("    "))
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        lines = part.rstrip("\n").split("\n")
        count = next(
            count for count in range(1, len(lines) + 1) if is_complete("\n".join(lines[:count]))
        )
        yield Step("\n".join(lines[:count]), "\n".join(lines[count:]))


def is_complete(command: str) -> bool:
    """Whether no quotation mark is open, and the last line does not continue."""
    try:
        shlex.split(command)
    except ValueError:
        return False
    return not command.endswith("\\")


def assert_as_shown(step: Step, answered: str) -> None:
    """Compare an answer with the page: as JSON, or else as text with `...` for any text."""
    if not step.shown.startswith("{"):
        text = ".*".join(map(re.escape, step.shown.split(ELIDED)))
        assert re.fullmatch(text, answered, re.DOTALL), f"{step.command}\n{answered}"
        return
    json = re.sub(r"\.\.\.(?=\s*\})", f'"{ELIDED}":0', step.shown)
    json = re.sub(r"\.\.\.(?=\s*\])", f'"{ELIDED}"', json)
    assert is_as_shown(orjson.loads(json), orjson.loads(answered)), f"{step.command}\n{answered}"


def is_as_shown(shown: Any, answered: Any) -> bool:
    match shown:
        case "...":
            return True
        case dict():
            if not isinstance(answered, dict):
                return False
            names = shown.keys() - {ELIDED}
            complete = ELIDED in shown or names == answered.keys()
            return complete and all(
                name in answered and is_as_shown(shown[name], answered[name]) for name in names
            )
        case [*first, "..."]:
            return isinstance(answered, list) and is_as_shown(first, answered[: len(first)])
        case list():
            return (
                isinstance(answered, list)
                and len(shown) == len(answered)
                and all(map(is_as_shown, shown, answered))
            )
        case float():
            return isinstance(answered, float) and abs(shown - answered) <= TOLERANCE
    return type(shown) is type(answered) and bool(shown == answered)


# The shell -----------------------------------------------------------------------------------


class Shell:
    """A bash that keeps its variables from one command to the next."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._errors = folder / "errors"
        with self._errors.open("wb") as errors:
            self._bash = subprocess.Popen(
                ["bash", "--norc", "-o", "pipefail"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *_error: object) -> None:
        self._bash.kill()
        self._bash.communicate()

    def run(self, command: str) -> str:
        """Return what a command prints, without the last line break; it must succeed."""
        assert self._bash.stdin and self._bash.stdout
        self._bash.stdin.write(f"{{ {command}\n}} < /dev/null\nprintf '\\n{END} %d\\n' $?\n")
        self._bash.stdin.flush()
        lines: list[str] = []
        while not (line := self._bash.stdout.readline()).startswith(END):
            assert line, f"bash ended: {command}\n{self._errors.read_text()}"
            lines.append(line)
        assert line == f"{END} 0\n", f"{command}\n{self._errors.read_text()}"
        return "".join(lines).rstrip("\n")


@pytest.mark.timeout(300)
@pytest.mark.skipif(not (shutil.which("bash") and shutil.which("curl")), reason="NOT TESTED: curl")
def test_every_line_of_the_examples_answers_as_shown(tmp_path: Path) -> None:
    folder, port = tmp_path / "checkout", free_port()
    folder.mkdir()
    (folder / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/keymatch").write_text(KEYMATCH)
    (tmp_path / "bin/keymatch").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    with Shell(folder, environment) as shell, ExitStack() as running:
        for step in steps(PAGE.read_text()):
            if step.serves:
                running.close()  # only one service has the port
                served = f"exec env -C {folder} {step.command} --port {port} --workers 1"
                server = Server(
                    ["bash", "-c", served],
                    log=tmp_path / "log",
                    port=port,
                    environment=environment,
                )
                running.enter_context(stopped_afterwards(server))
                continue
            answered = shell.run(step.command.replace("localhost:8000", f"localhost:{port}"))
            assert_as_shown(step, answered)


# The comparison ------------------------------------------------------------------------------


def test_the_page_has_the_steps_of_both_examples() -> None:
    found = list(steps(PAGE.read_text()))
    requests = [step for step in found if "curl" in step.command]
    assert len(requests) >= 20 and all(step.shown for step in requests)
    assert len([step for step in found if step.serves]) == 2
    for part in ("/rules", "negative", "starts_at", "boost", "filter", "explain", "--tenant"):
        assert any(part in step.command for step in found), part


@pytest.mark.parametrize(
    ("shown", "answered"),
    [
        ('{"a":1, ...}', '{"a":1,"b":2}'),
        ('{"a":[{"id":"x", ...}, ...], ...}', '{"a":[{"id":"x","score":1.0},{"id":"y"}]}'),
        ('{"a":[...]}', '{"a":[1,2]}'),
        ('{"at":"...","b":0.27}', '{"at":"2027","b":0.2725}'),
        ("read 7 rows; ...", "read 7 rows; and more"),
    ],
)
def test_what_is_left_out_may_be_anything(shown: str, answered: str) -> None:
    assert_as_shown(Step("", shown), answered)


@pytest.mark.parametrize(
    ("shown", "answered"),
    [
        ('{"a":1}', '{"a":1,"b":2}'),
        ('{"a":1, ...}', '{"a":2,"b":2}'),
        ('{"a":1, ...}', '{"b":2}'),
        ('{"a":true}', '{"a":1}'),
        ('{"a":[{"id":"x", ...},{"id":"z", ...}]}', '{"a":[{"id":"x"},{"id":"y"},{"id":"z"}]}'),
        ('{"a":[]}', '{"a":[1]}'),
        ('{"a":0.27}', '{"a":0.31}'),
        ("read 7 rows", "read 7 rows; and more"),
    ],
)
def test_what_is_shown_must_be_there(shown: str, answered: str) -> None:
    with pytest.raises(AssertionError):
        assert_as_shown(Step("", shown), answered)


def test_commands_may_have_several_lines() -> None:
    page = "Text.\n\n    $ a 'b\n      c' \\\n        d\n    e\n    $ f\n"
    assert list(steps(page)) == [Step("a 'b\n  c' \\\n    d", "e"), Step("f", "")]
