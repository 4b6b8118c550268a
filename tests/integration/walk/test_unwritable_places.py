"""A place that cannot be written to is reported in one sentence, before any other work."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from export.__main__ import app as export
from service.__main__ import app as service
from tests.support.commands import Refused
from training.__main__ import app as training

APPS = {"training": training, "export": export, "service": service}
# Of the named inputs, only BUNDLE and TABLE exist, because `predict` must read them first.
COMMANDS = [
    "training data pairs --input none.csv --query q --label k --out OUT",
    "training data moby --out OUT",
    "training data sample emoji-names --out OUT",
    "training data log --bundle none --state none --out OUT",
    "training data table --data none --out OUT.csv",
    "training fit --data none --out OUT",
    "training train rae --data none --out OUT",
    "training score --encoder none --data none --out OUT",
    "training rerank --run none --data none --out OUT",
    "training peer bm25 --data none --out OUT",
    "training compare own-data --data none --out OUT",
    "training report --run none --out OUT",
    "training tables --input none --out OUT",
    "training split novel --data none --out OUT",
    "training score --bundle none --data none --json OUT",
    "training score-novel --bundle none --data none --json OUT",
    "training budget --encoder none --data none --json OUT",
    "training robustness --run none --data none --out OUT",
    "training simulate stream --bundle none --data none --json OUT",
    "export encoder --encoder none --data none --out OUT",
    "export bundle --encoder none --data none --out OUT",
    "service snapshot --bundle none --state none --out OUT",
    "service compare --bundle none --bundle none --input none.csv --out OUT",
    "service predict --bundle BUNDLE --input TABLE --query q --out OUT.jsonl",
    "service log --state none --recover OUT",
    "service log --state none --json OUT",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_said_at_once(
    refused: Refused, tmp_path: Path, tiny_bundle_folder: Path, command: str
) -> None:
    table = tmp_path / "clicks.csv"
    table.write_text("q,k\ntent,shelter\n")
    places = {"BUNDLE": str(tiny_bundle_folder), "TABLE": str(table), "OUT": f"{table}/in/out"}
    package, *words = command.split()
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    said = refused(APPS[package], *words)
    assert said.startswith(f"{table}/in")
    assert ": cannot be written: " in said
    assert list(tmp_path.iterdir()) == [table]


def test_every_command_that_writes_is_here() -> None:
    for package, app in APPS.items():
        for words in writers(app):
            called = " ".join([package, *words])
            assert any(command.startswith(f"{called} ") for command in COMMANDS), called


def writers(app: App, *above: str) -> Iterator[tuple[str, ...]]:
    """Yield each command that has an option for an output."""
    for name in app:
        if name.startswith("-"):
            continue
        command = app[name]
        yield from writers(command, *above, name)
        if command.default_command is not None:
            arguments = command.assemble_argument_collection()
            if {"--out", "--json", "--recover"} & {n for one in arguments for n in one.names}:
                yield (*above, name)
