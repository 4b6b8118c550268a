"""A full disk gives one sentence with the output and the cause, and leaves no partial output."""

from contextlib import closing
from pathlib import Path

import pytest

from export.__main__ import app as export
from service.__main__ import app as service
from service.core.label_log import open_log
from tests.support.commands import status_of
from tests.support.disks import SmallDisk
from tests.support.disks import small_disk as small_disk
from tests.support.tiny.training import tiny_dataset, write_recipe, write_tiny_checkpoint
from training.__main__ import app as training
from training.datasets import lf_xmc

DEMO = Path(__file__).parents[3] / "deploy/demo/encoder"
APPS = {"training": training, "export": export, "service": service}
COMMANDS = {  # command -> numbers of free 4 KiB pages, into which a part of the output fits
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
    bundle = ("bundle", "--encoder", DEMO, "--data", folder / "data")
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


@pytest.mark.parametrize(
    ("command", "pages"), [(command, left) for command, some in COMMANDS.items() for left in some]
)
def test_it_is_named_and_nothing_half_written_stays(
    capsys: pytest.CaptureFixture[str],
    places: dict[str, Path],
    small_disk: SmallDisk,
    command: str,
    pages: int,
) -> None:
    package, *words = command.split()
    for name, place in {**places, "OUT": small_disk.folder / "out"}.items():
        words = [
            word.replace(name, str(place)) if word.startswith(name) else word for word in words
        ]
    capsys.readouterr()
    with small_disk.full(left=pages):
        status = status_of(APPS[package], *words)
    said = capsys.readouterr().err
    assert status == 2, said
    assert "Traceback" not in said
    last = said.splitlines()[-1]
    assert last.startswith(f"error: {small_disk.folder}/"), said
    assert last.endswith(": cannot be written: No space left on device"), said
    assert ".partial" not in last
    assert {path.name for path in small_disk.folder.iterdir()} <= {
        KEPT.get(f"{package} {words[0]}", "")
    }
    assert not any((small_disk.folder / path).exists() for path in LAST)
