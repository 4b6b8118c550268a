"""Queries of a file obey the rules of `POST /predict`."""

from pathlib import Path

import pytest

from service.bulk.query_file import FileQuery, OnBadRow, QueryFile
from service.core.errors import InvalidConfig, InvalidData
from service.settings import Limits

LIMITS = Limits(query_characters=10)


def queries(path: Path, on_bad_row: OnBadRow = "stop") -> QueryFile:
    return QueryFile(path, "q", limits=LIMITS, on_bad_row=on_bad_row)


def test_queries_are_trimmed_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("n,q\n1, ice axe \n2,rope\n")
    assert [query.text for query in queries(path)] == ["ice axe", "rope"]
    survey = queries(path).survey()
    assert (survey.rows, survey.skipped) == (2, 0)
    path.write_text("q\nice axe\nrope\n")
    assert queries(path).survey() == survey
    path.write_text("q\nice ax\nerope\n")
    assert queries(path).survey().digest != survey.digest


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"q": "  "}', "the query is empty"),
        ('{"q": "\\u001c"}', "the query is empty"),
        ('{"q": null}', "the query is empty"),
        ('{"q": 5}', "the query is no text but int"),
        ('{"q": "12345678901"}', "the query has 11 characters; at most 10 are allowed"),
    ],
)
def test_a_query_that_http_would_refuse_stops_or_is_skipped(
    tmp_path: Path, row: str, said: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"q": "rope"}}\n{row}\n')
    with pytest.raises(InvalidData) as objection:
        queries(path).survey()
    assert str(objection.value) == (
        f"{path}:2: q: {said}; correct the row, or pass --on-bad-row skip to leave it unanswered"
    )
    good, bad = queries(path, "skip")
    assert (good, bad.problem) == (FileQuery(text="rope"), said)
    assert queries(path, "skip").survey().skipped == 1


def test_a_table_needs_a_column_and_a_row(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with pytest.raises(InvalidConfig, match="name its column of queries by --query"):
        QueryFile(path, None, limits=LIMITS, on_bad_row="stop")
    path.write_text("q\n")
    with pytest.raises(InvalidData, match="holds no query"):
        queries(path).survey()
