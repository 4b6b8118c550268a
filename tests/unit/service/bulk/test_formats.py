"""Answers as JSON lines, CSV and parquet."""

import csv
import io
from pathlib import Path

import orjson
import pytest
from pyarrow import parquet

from service.bulk.formats import AnsweredPart, Format, format_of
from service.bulk.query_file import FileQuery
from service.core.errors import InvalidConfig
from service.core.prediction.answers import KeywordAnswer, ResultAnswer

SCORE = 0.1 + 0.2  # needs all of its digits
KEYWORDS: list[KeywordAnswer] = [
    {
        "id": "x",
        "text": "line\nfeed",
        "score": SCORE,
        "novel": True,
        "match": "exact",
        "confidence": 0.75,
    },
    {"id": "y", "text": "é", "score": 0.1, "novel": False, "match": "broad"},
]
QUOTED, NONE = 'a "b", c', FileQuery(text="none")
RESULT: ResultAnswer = {"query": QUOTED, "score_kind": "probability", "keywords": KEYWORDS}
EMPTY: ResultAnswer = {
    "query": "none",
    "searched": "meant",
    "score_kind": "probability",
    "keywords": [],
}
ANSWERED = AnsweredPart(
    first_row=3,
    queries=(
        FileQuery(text=QUOTED),
        FileQuery(text="", problem="the query is empty"),
        NONE,
        FileQuery(text=QUOTED),
    ),
    results={FileQuery(text=QUOTED): RESULT, NONE: EMPTY},
)


def written(form: Format, folder: Path) -> Path:
    """Write `ANSWERED` as two parts and join them; return the file."""
    parts = [folder / "0", folder / "1"]
    for part in parts:
        part.write_bytes(form.part(ANSWERED))
    form.join(parts, folder / "joined")
    return folder / "joined"


def test_json_lines_are_results_of_http(tmp_path: Path) -> None:
    lines = written(format_of(Path("o.jsonl"), explain=False), tmp_path).read_bytes().splitlines()
    assert [orjson.loads(line) for line in lines] == 2 * [
        RESULT,
        {"query": "", "keywords": [], "problem": "the query is empty"},
        EMPTY,
        RESULT,
    ]


def test_csv_has_a_line_for_each_keyword(tmp_path: Path) -> None:
    first = '"a ""b"", c",1,x,"line\nfeed",0.30000000000000004,true,probability,,exact,0.75\n'
    second = '"a ""b"", c",2,y,é,0.1,false,probability,,broad,\n'
    part = f"3,{first}3,{second}4,,,,,,,,,,\n5,none,,,,,,probability,meant,,\n6,{first}6,{second}"
    text = written(format_of(Path("o.csv"), explain=False), tmp_path).read_text()
    header = "row,query,rank,id,text,score,novel,score_kind,searched,match,confidence"
    assert text == f"{header}\n{part}{part}"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1"])
def test_formulas_are_escaped_if_asked(text: str) -> None:
    query = FileQuery(text=text)
    keyword: KeywordAnswer = {
        "id": text,
        "text": text,
        "score": -0.5,
        "novel": False,
        "match": "exact",
    }
    answered = AnsweredPart(
        first_row=1,
        queries=(query, FileQuery(text=text, problem="any"), FileQuery(text="1=1")),
        results={
            query: {
                "query": text,
                "searched": text,
                "score_kind": "votes",
                "keywords": [keyword],
            },
            FileQuery(text="1=1"): {"query": "1=1", "score_kind": "votes", "keywords": []},
        },
    )

    def cells(**options: bool) -> list[list[str]]:
        form = format_of(Path("o.csv"), explain=False, **options)
        return list(csv.reader(io.StringIO(form.part(answered).decode(), newline="")))

    raw, escaped = text, f"'{text}"
    for given, expected in (({}, raw), ({"escape_formulas": True}, escaped)):
        assert cells(**given) == [
            ["1", expected, "1", *[expected] * 2, "-0.5", "false", "votes", expected, "exact", ""],
            ["2", expected, "", "", "", "", "", "", "", "", ""],
            ["3", "1=1", "", "", "", "", "", "votes", "", "", ""],
        ]


def test_parquet_has_a_row_for_each_query(tmp_path: Path) -> None:
    rows = parquet.read_table(written(format_of(Path("o.parquet"), explain=False), tmp_path))
    result = {**RESULT, "keywords": [{"confidence": None, **keyword} for keyword in KEYWORDS]}
    assert rows.to_pylist()[4:] == [
        {**result, "problem": None, "searched": None},
        {**dict.fromkeys(EMPTY), "query": "", "keywords": [], "problem": "the query is empty"},
        {**EMPTY, "problem": None},
        {**result, "problem": None, "searched": None},
    ]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("o.json", {"explain": False}, r"expected .jsonl, .csv or .parquet"),
        ("o.csv", {"explain": True}, "no place for evidence"),
        (
            "o.jsonl",  # JSON files have no formulas to escape
            {"explain": False, "escape_formulas": True},
            r"name a \.csv file for --escape-formulas",
        ),
    ],
)
def test_what_a_format_has_no_place_for_is_refused(
    name: str, options: dict[str, bool], said: str
) -> None:
    with pytest.raises(InvalidConfig, match=said):
        format_of(Path(name), **options)
