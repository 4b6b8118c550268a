"""A wrong option is refused in one line before any work, and nothing is written."""

from pathlib import Path

import pytest
from cyclopts import App

from export.__main__ import app as export
from tests.support.commands import Refused, status_of
from training.__main__ import app as training

DEMO = str(Path(__file__).parents[3] / "deploy/demo/encoder")
PAIRS = "data pairs --input TABLE --query query --label keyword --out OUT"
FIT = "fit --data DATA --out OUT"
TRAIN = "train rae --data DATA --out OUT"
BUNDLE = f"bundle --encoder {DEMO} --data DATA --out OUT"
WRONG = [
    (training, f"{PAIRS} --delimeter ;", "Did you mean --delimiter?"),
    (training, f"{PAIRS} --delimiter x", 'Choose from: ",", ";", "tab", "|"'),
    (training, f"{PAIRS} --test-fraction much", 'unable to convert "much" into float'),
    (training, f"{PAIRS} --test-fraction 2", "0 or more and below 1, not 2"),
    (training, f"{PAIRS} --weight clicks", "clicks: there is no such column"),
    (training, f"{PAIRS} --half-life 3", "needs a column of times: --time"),
    (training, PAIRS.replace("OUT", "DATA"), "exists already; name a new folder"),
    (training, PAIRS.replace("OUT", "TABLE/x"), "is not a folder"),
    (training, f"{FIT} --minutes 0", "minutes must be above 0, not 0"),
    (training, f"{FIT} --minutes nan", "minutes must be above 0, not nan"),
    (training, f"{FIT} --seed -1", "the seed must be 0 or more, not -1"),
    (
        training,
        f"{FIT} --encoder {DEMO}",
        "an exported encoder, which serves but cannot be trained",
    ),
    (training, f"{FIT} --encoder package:nonsense-encoder", "pip install nonsense-encoder"),
    (training, TRAIN.replace("rae", "raee"), "no recipe is named 'raee'"),
    (training, f"{TRAIN} --set optimizer.stps=4", "did you mean steps?"),
    (training, f"{TRAIN} --set optimizer.steps=0", "greater than or equal to 1"),
    (export, BUNDLE.replace(DEMO, "./nonsense"), "there is no such folder"),
    (export, f"{BUNDLE} --depth 0", "--depth must lie in 1..2000, not 0"),
    (export, f"{BUNDLE} --memorization 2", "--memorization must lie in 0..1, not 2"),
    (export, f"{BUNDLE} --tau nan", "--tau must lie in 1e-06..1e+06, not nan"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table and its data set; refused commands must add nothing to this folder."""
    folder = tmp_path_factory.mktemp("wrong")
    table = folder / "clicks.csv"
    table.write_text("query,keyword\n" + "".join(f"tent {n},tent\n" for n in range(30)))
    columns = ("--query", "query", "--label", "keyword")
    made = ("data", "pairs", "--input", table, *columns, "--out", folder / "data")
    assert status_of(training, *made) == 0
    return folder


@pytest.mark.parametrize(("app", "command", "said"), WRONG)
def test_a_wrong_setting_is_refused(
    refused: Refused, folder: Path, app: App, command: str, said: str
) -> None:
    for name, place in {"TABLE": "clicks.csv", "DATA": "data", "OUT": "out"}.items():
        command = command.replace(name, str(folder / place))
    assert said in refused(app, *command.split())
    assert sorted(path.name for path in folder.iterdir()) == ["clicks.csv", "data"]
