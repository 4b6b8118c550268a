"""Queries and their known labels from a table."""

from pathlib import Path

import orjson
import pytest

from service.comparison.query_labels import KnownLabels, read_queries
from service.core.errors import InvalidConfig, InvalidData
from service.settings import Limits


def read(path: Path, *labels: str, query: str | None = "q") -> KnownLabels:
    return read_queries(path, query=query, labels=labels, limits=Limits())


def test_rows_of_a_query_add_up(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("q,a,b\n rope ,x,y\ntent,,\nrope,z,x\n")
    assert read(path, "a", "b") == {"rope": ("x", "y", "z"), "tent": ()}
    assert read(path, "b") == {"rope": ("y", "x"), "tent": ()}
    assert read(path) == {"rope": (), "tent": ()}


def test_lists_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"q": "rope", "a": ["x", 7]}, {"q": "tent", "a": None}, {"q": "axe", "a": "y"}]
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    assert read(path, "a") == {"rope": ("x", "7"), "tent": (), "axe": ("y",)}


def test_lines_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("rope\ntent\nrope\n")
    assert list(read(path, query=None)) == ["rope", "tent"]


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(InvalidConfig, match="name its column of queries by --query"):
        read(path, query=None)
    path.write_text('{"q": "rope", "a": 0.5}\n')
    with pytest.raises(InvalidData, match=r"t.jsonl:1: a: a label is no text but float"):
        read(path, "a")
    path.write_text('{"q": " ", "a": "x"}\n')
    with pytest.raises(InvalidData, match=r":1: q: the query is empty; correct or remove the row"):
        read(path, "a")
    path.write_text("")
    with pytest.raises(InvalidData, match="holds no query"):
        read(path, "a")
