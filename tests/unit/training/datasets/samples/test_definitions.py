from pathlib import Path

import pytest

from service.core.errors import InvalidData
from training.datasets.samples import definitions

LICENCE = "  1 This software is provided to you | under a licence\n"
NOUN = (
    "00023953 03 n 03 motivation 0 motive 0 a_need 0 001 @ 00023280 n 0000"
    ' | what arouses to action; the reason; "we know his motives"; "the best motives"  \n'
)
ADJECTIVE = "00001740 00 s 01 awake(p) 0 000 | not asleep\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, lines in zip(definitions.FILES, (NOUN, "", ADJECTIVE, ""), strict=True):
        (tmp_path / name).write_text(LICENCE + lines)
    return tmp_path


def test_words_of_a_definition(folder: Path) -> None:
    assert list(definitions.rows(folder)) == [
        ("what arouses to action; the reason", ["motivation", "motive", "a need"]),
        ("not asleep", ["awake"]),
    ]


@pytest.mark.parametrize("line", ["00001740 00 s zz awake 0 | x", "a b", "1 00 s 01 awake 0 000 x"])
def test_another_file_is_refused(folder: Path, line: str) -> None:
    (folder / "data.verb").write_text(f"{LICENCE}{line}\n")
    with pytest.raises(InvalidData, match=r"data\.verb:2: is not a line of WordNet's data files"):
        list(definitions.rows(folder))
