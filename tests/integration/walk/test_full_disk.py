"""A place that is full or unwritable, or a signal, ends a command with one sentence.

It names the output and the cause. No partial output stays.
"""

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from export.__main__ import app as export
from service.__main__ import app as service
from service.core.label_log import open_log
from tests.support.commands import Refused, every_command, status_of
from tests.support.disks import SmallDisk
from tests.support.disks import small_disk as small_disk
from tests.support.tiny.training import tiny_dataset, write_recipe, write_tiny_checkpoint
from training.__main__ import app as training
from training.datasets import lf_xmc

DEMO = Path(__file__).parents[3] / "deploy/demo/encoder"
APPS = {"training": training, "export": export, "service": service}
FULL = {  # command -> numbers of free 4 KiB pages, into which a part of the output fits
    "training data pairs --input TABLE --query q --label k --out OUT": (0, 2),
    "training data table --data DATA --split train --out OUT.csv": (0,),
    "training data log --bundle BUNDLE --state STATE --out OUT": (0, 2),
    "training split novel --data DATA --out OUT": (0, 2),
    "training score --bundle EXPORTED --data DATA --json OUT": (0,),
    "training score --encoder CHECKPOINT --data DATA --out OUT": (0, 2),
    "training train RECIPE --data DATA --out OUT": (0, 20),
    "training peer bm25 --data DATA --out OUT": (0, 1),
    "export encoder --encoder CHECKPOINT --data DATA --out OUT": (0, 2),
    "export bundle --encoder DEMO --data DATA --out OUT": (0, 2, 16),
    "service snapshot --bundle BUNDLE --state STATE --out OUT": (0, 2),
    "service compare --bundle BUNDLE --bundle EXPORTED --input TABLE --query q --out OUT": (0, 2),
    "service predict --bundle BUNDLE --input TABLE --query q --out OUT.jsonl": (0, 2),
    "service log --state STATE --recover OUT": (0, 2, 16),
}
KEPT = {  # incomplete output that a later call continues or replaces
    "training train": "out",
    "training score": "out",
    "training peer": "out",
    "export bundle": ".out.encoding",
}
LAST = {"out/best", "out/results.json", "out/manifest.json"}
# Of the named inputs, only BUNDLE and TABLE exist, because `predict` must read them first.
UNWRITABLE = [
    "training data pairs --input none.csv --query q --label k --out OUT",
    "training data moby --out OUT",
    "training data sample emoji-names --out OUT",
    "training data texts --count 10 --packages none --out OUT",
    "training data log --bundle none --state none --out OUT",
    "training data table --data none --out OUT.csv",
    "training fit --data none --out OUT",
    "training train rae --data none --out OUT",
    "training score --encoder none --data none --out OUT",
    "training rerank --run none --data none --out OUT",
    "training peer bm25 --data none --out OUT",
    "training compare own-data --data none --out OUT",
    "training report --run none --out OUT",
    "training split novel --data none --out OUT",
    "training score --bundle none --data none --json OUT",
    "training score-novel --bundle none --data none --json OUT",
    "training budget --encoder none --data none --json OUT",
    "training simulate stream --bundle none --data none --json OUT",
    "export encoder --encoder none --data none --out OUT",
    "export bundle --encoder none --data none --out OUT",
    "service snapshot --bundle none --state none --out OUT",
    "service compare --bundle none --bundle none --input none.csv --out OUT",
    "service predict --bundle BUNDLE --input TABLE --query q --out OUT.jsonl",
    "service log --state none --recover OUT",
    "service log --state none --json OUT",
]
MOMENTS = {  # module and function after whose work a signal is sent -> the command
    ("training.datasets.lf_xmc.folder", "write_lines"): (
        "training data pairs --input TABLE --query q --label k --out OUT"
    ),
    ("export.bundle.build", "encode_resumably"): (
        "export bundle --encoder DEMO --data DATA --out OUT"
    ),
    ("training.commands.score", "open_evaluation"): (
        "training score --bundle EXPORTED --data DATA --json OUT"
    ),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, tiny_bundle_folder: Path) -> dict[str, Path]:
    """The inputs of the commands."""
    folder = tmp_path_factory.mktemp("inputs")
    table = folder / "clicks.csv"
    rows = "".join(f"query {row},keyword {row}\n" for row in range(500))
    table.write_text(f"q,k\n{rows}")
    lf_xmc.write(tiny_dataset(), folder / "data")
    with closing(open_log(folder / "state")):
        pass
    checkpoint = write_tiny_checkpoint(folder / "checkpoint")
    bundle = ("bundle", "--encoder", DEMO, "--data", folder / "data", "--hold-out-test")
    assert status_of(export, *bundle, "--out", folder / "exported") == 0
    return {
        "TABLE": table,
        "DATA": folder / "data",
        "STATE": folder / "state",
        "CHECKPOINT": checkpoint,
        "RECIPE": write_recipe(folder, model=checkpoint),
        "BUNDLE": tiny_bundle_folder,
        "EXPORTED": folder / "exported",
        "DEMO": DEMO,
    }


def filled(command: str, places: Mapping[str, Path]) -> tuple[App, list[str]]:
    """Return a command's application, and its words with the paths of the places."""
    package, *words = command.split()
    for name, place in places.items():
        words = [
            word.replace(name, str(place)) if word.startswith(name) else word for word in words
        ]
    return APPS[package], words


@pytest.mark.parametrize(
    ("command", "pages"), [(command, left) for command, some in FULL.items() for left in some]
)
def test_a_full_disk_is_named_and_nothing_half_written_stays(
    capsys: pytest.CaptureFixture[str],
    places: dict[str, Path],
    small_disk: SmallDisk,
    command: str,
    pages: int,
) -> None:
    app, words = filled(command, {**places, "OUT": small_disk.folder / "out"})
    capsys.readouterr()
    with small_disk.full(left=pages):
        status = status_of(app, *words)
    said = capsys.readouterr().err
    assert status == 2, said
    assert "Traceback" not in said
    last = said.splitlines()[-1]
    assert last.startswith(f"error: {small_disk.folder}/"), said
    assert last.endswith(": cannot be written: No space left on device"), said
    assert ".partial" not in last
    kept = KEPT.get(" ".join(command.split()[:2]), "")
    assert {path.name for path in small_disk.folder.iterdir()} <= {kept}
    assert not any((small_disk.folder / path).exists() for path in LAST)


@pytest.mark.parametrize("command", UNWRITABLE)
def test_an_unwritable_place_is_named_before_any_other_work(
    refused: Refused, tmp_path: Path, tiny_bundle_folder: Path, command: str
) -> None:
    table = tmp_path / "clicks.csv"
    table.write_text("q,k\ntent,shelter\n")
    places = {"BUNDLE": tiny_bundle_folder, "TABLE": table, "OUT": table / "in/out"}
    app, words = filled(command, places)
    said = refused(app, *words)
    assert said.startswith(f"{table}/in")
    assert ": cannot be written: " in said
    assert list(tmp_path.iterdir()) == [table]


@pytest.mark.parametrize("package", APPS)
def test_every_command_that_writes_is_here(package: str) -> None:
    for words, command in every_command(APPS[package]):
        if command.default_command is not None:
            arguments = command.assemble_argument_collection()
            if {"--out", "--json", "--recover"} & {n for one in arguments for n in one.names}:
                called = " ".join([package, *words])
                assert any(known.startswith(f"{called} ") for known in UNWRITABLE), called


def signal_after(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Wrap `function`: the signal is sent after its work."""

    def called(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        os.kill(os.getpid(), number)
        return result

    return called


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment[1])
def test_a_signal_is_named_and_nothing_half_written_stays(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    places: dict[str, Path],
    tmp_path: Path,
    number: signal.Signals,
    moment: tuple[str, str],
) -> None:
    module, name = import_module(moment[0]), moment[1]
    monkeypatch.setattr(module, name, signal_after(getattr(module, name), number))
    app, words = filled(MOMENTS[moment], {**places, "OUT": tmp_path / "out"})
    capsys.readouterr()
    assert status_of(app, *words) == 128 + number
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {number.name}: the command was stopped before its output")
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {".out.encoding"}  # finished vectors, which a second try reuses
