"""The queries in a file must obey the same rules as those of `POST /predict`."""

from pathlib import Path

import pytest

from service.bulk.query_file import FileQuery, ItemsColumn, OnBadRow, QueryFile
from service.core.errors import InvalidConfig, InvalidData
from service.core.items.item_memory import ItemMemory
from service.settings import Limits
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.tiny.items import ITEMS, tiny_items

LIMITS = Limits(items=2, query_characters=12)


@pytest.fixture
def memory(tmp_path: Path) -> ItemMemory:
    return ItemMemory.of(tiny_items(tmp_path, TrigramEncoder(), ITEMS))


def queries(
    path: Path, on_bad_row: OnBadRow = "stop", *, items: bool = False, delimiter: str = "|"
) -> QueryFile:
    column = ItemsColumn(name="i", limits=LIMITS, delimiter=delimiter) if items else None
    return QueryFile(path, "q", limits=LIMITS, on_bad_row=on_bad_row, items=column)


def test_a_cell_holds_several_items_or_none(tmp_path: Path, memory: ItemMemory) -> None:
    path = tmp_path / "t.csv"
    path.write_text("q,i\na,camp| Lamp  light \nb, \nc,feet|\n")
    given = [query.items for query in queries(path, items=True).knowing(memory)]
    assert given == [("camp", "Lamp light"), None, ("feet",)]
    path.write_text("q,i\na,camp; feet\n")
    given = [query.items for query in queries(path, items=True, delimiter="; ")]
    assert given == [("camp", "feet")]
    lists = tmp_path / "t.jsonl"
    lists.write_text('{"q": "a", "i": ["camp"]}\n{"q": "b", "i": []}\n{"q": "c", "i": null}\n')
    assert [query.items for query in queries(lists, items=True)] == [("camp",), (), None]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ('"q": "  "', "q: the query is empty"),
        ('"q": "\\u001c"', "q: the query is empty"),
        ('"q": null', "q: the query is empty"),
        ('"q": 5', "q: the query is no text but int"),
        ('"q": "1234567890123"', "q: the query has 13 characters; at most 12 are allowed"),
        ('"i": "nowhere"', "i: no item has the id or text 'nowhere'"),
        ('"i": ["camp", "feet", "water"]', "i: names 3 items; at most 2 are allowed"),
        (
            '"i": "of thirteen ch"',
            "i: the item 'of thirteen ch' has 14 characters; at most 12 are allowed",
        ),
        ('"i": ["camp", {"a": 1}]', "i: must be a text, not dict"),
        ('"i": true', "i: must be a text, not bool"),
    ],
)
def test_what_http_would_refuse_stops_or_is_skipped(
    tmp_path: Path, memory: ItemMemory, cell: str, said: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"q": "rope", "i": "camp"}}\n{{"q": "lamp", "i": null, {cell}}}\n')
    with pytest.raises(InvalidData) as objection:
        queries(path, items=True).knowing(memory).survey()
    assert str(objection.value) == (
        f"{path}:2: {said}; correct the row, or pass --on-bad-row skip to leave it unanswered"
    )
    skipping = queries(path, "skip", items=True).knowing(memory)
    good, bad = skipping
    assert (good, bad.problem) == (FileQuery(text="rope", items=("camp",)), said[3:])
    assert skipping.survey().skipped == 1


def test_the_digest_tells_other_queries_and_items_apart(tmp_path: Path) -> None:
    path, digests = tmp_path / "t.jsonl", set()
    for cell in ("null", "[]", '["camp"]', '["camp", "feet"]', '["campfeet"]'):
        path.write_text(f'{{"q": "rope", "i": {cell}}}\n')
        digests.add(queries(path, items=True).survey().digest)
    assert len(digests) == 5
    path = tmp_path / "t.csv"
    path.write_text("n,q\n1, ice axe \n2,rope\n")
    assert [query.text for query in queries(path)] == ["ice axe", "rope"]
    survey = queries(path).survey()
    assert (survey.rows, survey.skipped) == (2, 0)
    path.write_text("q\nice axe\nrope\n")
    assert queries(path).survey() == survey
    path.write_text("q\nice ax\nerope\n")
    assert queries(path).survey().digest != survey.digest


def test_wrong_options_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="--items-delimiter must be one character or more"):
        ItemsColumn(name="i", limits=LIMITS, delimiter="")
    path = tmp_path / "t.txt"
    path.write_text("tent\n")
    with pytest.raises(InvalidData, match="has one column, and 2 are wanted; give a table"):
        queries(path, items=True).survey()
    path = tmp_path / "t.csv"
    with pytest.raises(InvalidConfig, match="name its column of queries by --query"):
        QueryFile(path, None, limits=LIMITS, on_bad_row="stop")
    path.write_text("q\n")
    with pytest.raises(InvalidData, match="holds no query"):
        queries(path).survey()
