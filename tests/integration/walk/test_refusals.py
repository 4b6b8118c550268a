"""A wrong option or an unusable table is refused in one line, and nothing is written.

The line says what is wrong, where, and what to do. `tests/unit/service/core/tables` and
`tests/unit/training/datasets/tables` test more tables.
"""

import gzip
import os
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
    (training, PAIRS.replace("keyword", "query"), "name the same column, 'query'"),
    (training, f"{PAIRS} --test-fraction much", 'unable to convert "much" into float'),
    (training, f"{PAIRS} --test-fraction 2", "0 or more and below 1, not 2"),
    (training, f"{PAIRS} --weight clicks", "clicks: there is no such column"),
    (training, f"{PAIRS} --half-life 3", "needs a column of times: --time"),
    (training, PAIRS.replace("OUT", "DATA"), "exists already; name a new folder"),
    (training, PAIRS.replace("OUT", "TABLE/x"), "is not a folder"),
    (training, f"{FIT} --minutes 0", "minutes must be above 0, not 0"),
    (training, f"{FIT} --minutes nan", "minutes must be above 0, not nan"),
    (training, f"{FIT} --seed -1", "the seed must be 0 or more, not -1"),
    (training, f"{FIT} --encoder {DEMO}", "exported encoder, which serves but cannot be trained"),
    (training, f"{FIT} --encoder package:nonsense-encoder", "pip install nonsense-encoder"),
    (training, TRAIN.replace("rae", "raee"), "no recipe is named 'raee'"),
    (training, f"{TRAIN} --set optimizer.stps=4", "did you mean steps?"),
    (training, f"{TRAIN} --set optimizer.steps=0", "must be at least 1"),
    (export, BUNDLE.replace(DEMO, "./nonsense"), "there is no such folder"),
    (export, f"{BUNDLE} --depth 0", "--depth must lie in 1..2000, not 0"),
    (export, f"{BUNDLE} --memorization 2", "--memorization must lie in 0..1, not 2"),
    (export, f"{BUNDLE} --tau nan", "--tau must lie in 1e-06..1e+06, not nan"),
]

HEADER = "query,keyword,weight,time\n"
ROWS = "".join(f"red shoes {n},shoes {n % 3},1,2026-01-0{n % 9 + 1}\n" for n in range(30))
GOOD = HEADER + ROWS
SAME = "".join(f"tent {n},tent {n}\n" for n in range(30))
LONG = f"{'x' * 2**20}\n"


BROKEN: dict[str, tuple[str, str | bytes, str, list[str]]] = {
    "wrong delimiter": ("csv", GOOD, "--delimiter ;", [":1: query:", "delimiter: semicolon"]),
    "no header": ("csv", ROWS, "", [":1: query:", "line 1 must name them"]),
    "column twice": ("csv", "query,keyword,query\na,b,c\n", "", [":1: query:", "rename one"]),
    "endless row": ("csv", f'query,keyword\n"{LONG * 18}', "", [":2:", "is not closed"]),
    "cut gzip": ("csv.gz", gzip.compress(GOOD.encode() * 9)[:-30], "", ["gzip", "copy the file"]),
    "text as weight": ("csv", f"{HEADER}a,b,much,1\n", "--weight weight", [":2: weight: 'much'"]),
    "huge weights": (
        "csv",
        f"{GOOD}a,b,1e99,1\n",
        "--weight weight",
        ["scale all weights alike"],
    ),
    "no time": ("csv", f"{HEADER}a,b,1,2026-13-45\n", "--time time", [":2: time:", "ISO 8601"]),
    "keyword is query": ("csv", f"query,keyword\n{SAME}", "", ["equals", "--keep-exact"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table and its data set; refused commands must add nothing to this folder."""
    folder = tmp_path_factory.mktemp("wrong")
    table = folder / "clicks.csv"
    table.write_text("query,keyword\n" + "".join(f"tent {n},tent\n" for n in range(30)))
    made = PAIRS.replace("TABLE", str(table)).replace("OUT", str(folder / "data"))
    assert status_of(training, *made.split()) == 0
    return folder


@pytest.mark.parametrize(("app", "command", "said"), WRONG)
def test_a_wrong_setting_is_refused(
    refused: Refused, folder: Path, app: App, command: str, said: str
) -> None:
    for name, place in {"TABLE": "clicks.csv", "DATA": "data", "OUT": "out"}.items():
        command = command.replace(name, str(folder / place))
    assert said in refused(app, *command.split())
    assert sorted(path.name for path in folder.iterdir()) == ["clicks.csv", "data"]


def refusal(refused: Refused, table: Path, options: str = "") -> str:
    """Return the error of `data pairs` for a table; it must write nothing."""
    out = str(table.parent / "out")
    command = f"{PAIRS} {options}".replace("TABLE", str(table)).replace("OUT", out)
    said = refused(training, *command.split())
    assert [path.name for path in table.parent.iterdir() if path != table] == []
    return said


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_table_is_refused(refused: Refused, tmp_path: Path, kind: str) -> None:
    ending, content, options, words = BROKEN[kind]
    table = tmp_path / f"clicks.{ending}"
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    said = refusal(refused, table, options)
    assert said.startswith(str(table))
    for word in words:
        assert word in said


def test_what_is_no_readable_file_is_refused(refused: Refused, tmp_path: Path) -> None:
    table = tmp_path / "clicks.csv"
    assert refusal(refused, table) == f"{table}: cannot be read: No such file or directory"
    table.mkdir()
    assert refusal(refused, table) == f"{table}: is a folder without files of a table"
    table.rmdir()
    table.touch(mode=0)
    if os.geteuid():  # root may read every file
        assert refusal(refused, table) == f"{table}: cannot be read: Permission denied"
