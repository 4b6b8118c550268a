"""Answers as JSON lines, CSV and parquet."""

from pathlib import Path

import orjson
import pytest
from pyarrow import parquet

from service.bulk.formats import AnsweredPart, Format, format_of
from service.bulk.query_file import FileQuery
from service.core.errors import InvalidConfig
from service.http.answers import KeywordAnswer

SCORE = 0.1 + 0.2  # all digits matter
KEYWORDS: list[KeywordAnswer] = [
    {"id": "x", "text": "line\nfeed", "score": SCORE, "novel": True},
    {"id": "y", "text": "é", "score": 0.1, "novel": False},
]
ANSWERED = AnsweredPart(
    first_row=3,
    queries=(
        FileQuery(text='a "b", c'),
        FileQuery(text="", problem="the query is empty"),
        FileQuery(text="none"),
        FileQuery(text='a "b", c'),
    ),
    results={
        FileQuery(text='a "b", c'): {"query": 'a "b", c', "keywords": KEYWORDS},
        FileQuery(text="none"): {"query": "none", "keywords": []},
    },
)


def written(form: Format, folder: Path) -> Path:
    """The file of two equal parts."""
    parts = [folder / "0", folder / "1"]
    for part in parts:
        part.write_bytes(form.part(ANSWERED))
    form.join(parts, folder / "joined")
    return folder / "joined"


def test_json_lines_are_results_of_http(tmp_path: Path) -> None:
    lines = written(format_of(Path("o.jsonl"), explain=False), tmp_path).read_bytes().splitlines()
    assert [orjson.loads(line) for line in lines] == 2 * [
        {"query": 'a "b", c', "keywords": KEYWORDS},
        {"query": "", "keywords": [], "problem": "the query is empty"},
        {"query": "none", "keywords": []},
        {"query": 'a "b", c', "keywords": KEYWORDS},
    ]


def test_csv_has_a_line_for_each_keyword(tmp_path: Path) -> None:
    first = '"a ""b"", c",1,x,"line\nfeed",0.30000000000000004,true\n'
    second = '"a ""b"", c",2,y,é,0.1,false\n'
    part = f"3,{first}3,{second}4,,,,,,\n5,none,,,,,\n6,{first}6,{second}"
    text = written(format_of(Path("o.csv"), explain=False), tmp_path).read_text()
    assert text == f"row,query,rank,id,text,score,novel\n{part}{part}"


def test_parquet_has_a_row_for_each_query(tmp_path: Path) -> None:
    rows = parquet.read_table(written(format_of(Path("o.parquet"), explain=False), tmp_path))
    assert rows.to_pylist()[4:] == [
        {"query": 'a "b", c', "keywords": KEYWORDS, "problem": None},
        {"query": "", "keywords": [], "problem": "the query is empty"},
        {"query": "none", "keywords": [], "problem": None},
        {"query": 'a "b", c', "keywords": KEYWORDS, "problem": None},
    ]


def test_other_endings_and_evidence_elsewhere_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"expected .jsonl, .csv or .parquet"):
        format_of(Path("o.json"), explain=False)
    with pytest.raises(InvalidConfig, match="no place for evidence"):
        format_of(Path("o.csv"), explain=True)
