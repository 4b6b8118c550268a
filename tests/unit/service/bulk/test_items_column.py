"""Items in a column of a table: several a cell, under the limits of `POST /predict`."""

from pathlib import Path

import pytest

from service.bulk.items_column import ItemsColumn
from service.bulk.query_file import QueryFile
from service.core.errors import InvalidConfig, InvalidData
from service.core.items.item_memory import ItemMemory
from service.settings import Limits
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.tiny.items import ITEMS, tiny_items

LIMITS = Limits(items=2, query_characters=12)


@pytest.fixture
def memory(tmp_path: Path) -> ItemMemory:
    return ItemMemory.of(tiny_items(tmp_path, TrigramEncoder(), ITEMS))


def queries(path: Path, delimiter: str = "|", on_bad_row: str = "stop") -> QueryFile:
    items = ItemsColumn(name="i", limits=LIMITS, delimiter=delimiter)
    return QueryFile(path, "q", limits=LIMITS, on_bad_row=on_bad_row, items=items)


def test_a_cell_holds_several_items_or_none(tmp_path: Path, memory: ItemMemory) -> None:
    path = tmp_path / "t.csv"
    path.write_text("q,i\na,camp| Lamp  light \nb, \nc,feet|\n")
    given = [query.items for query in queries(path).knowing(memory)]
    assert given == [("camp", "Lamp light"), None, ("feet",)]
    path.write_text("q,i\na,camp; feet\n")
    assert [query.items for query in queries(path, "; ")] == [("camp", "feet")]
    lists = tmp_path / "t.jsonl"
    lists.write_text('{"q": "a", "i": ["camp"]}\n{"q": "b", "i": []}\n{"q": "c", "i": null}\n')
    assert [query.items for query in queries(lists)] == [("camp",), (), None]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ('"nowhere"', "no item has the id or text 'nowhere'"),
        ('["camp", "feet", "water"]', "names 3 items; at most 2 are allowed"),
        ('"of thirteen ch"', "the item 'of thirteen ch' has 14 characters; at most 12 are allowed"),
        ('["camp", {"a": 1}]', "must be a text, not dict"),
        ("true", "must be a text, not bool"),
    ],
)
def test_what_http_would_refuse_stops_or_is_skipped(
    tmp_path: Path, memory: ItemMemory, cell: str, said: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"q": "rope", "i": "camp"}}\n{{"q": "lamp", "i": {cell}}}\n')
    with pytest.raises(InvalidData) as objection:
        queries(path).knowing(memory).survey()
    assert str(objection.value) == (
        f"{path}:2: i: {said}; correct the row, or pass --on-bad-row skip to leave it unanswered"
    )
    good, bad = queries(path, on_bad_row="skip").knowing(memory)
    assert (good.items, bad.problem) == (("camp",), said)


def test_the_digest_tells_other_items_apart(tmp_path: Path) -> None:
    path, digests = tmp_path / "t.jsonl", set()
    for cell in ("null", "[]", '["camp"]', '["camp", "feet"]', '["campfeet"]'):
        path.write_text(f'{{"q": "rope", "i": {cell}}}\n')
        digests.add(queries(path).survey().digest)
    assert len(digests) == 5


def test_wrong_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="--items-delimiter must be one character or more"):
        ItemsColumn(name="i", limits=LIMITS, delimiter="")
    path = tmp_path / "t.txt"
    path.write_text("tent\n")
    with pytest.raises(InvalidData, match="has one column, and 2 are wanted; give a table"):
        queries(path).survey()
