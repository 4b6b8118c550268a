"""A catalogue's labels, ids and typed fields, and the errors of bad tables."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.errors import InvalidData
from service.core.label_filter import MOST_CHARACTERS, MOST_ENTRIES
from tests.support.tiny.tables import FORMATS, write_table
from training.datasets.dataset import Texts
from training.datasets.tables.catalogue import Catalogue, read_catalogue
from training.datasets.tables.typed_columns import typed_column

HEADER = ["sku", "title", "price", "brand", "stocked"]
ROWS = [
    ["A-1", "Rubber  boots", 29.9, "Acme", True],
    ["A-2", "Camping tent", 199, "", False],
    ["A-3", "Head lamp", 19.5, " Nordic ", True],
]


def read(path: Path, *fields: str, label_id: str | None = "sku", **options: Any) -> Catalogue:
    return read_catalogue(path, text="title", label_id=label_id, fields=fields, **options)


def written(folder: Path, content: str, ending: str = "csv") -> Path:
    path = folder / f"products.{ending}"
    path.write_text(content)
    return path


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_reads_the_same(tmp_path: Path, ending: str) -> None:
    catalogue = read(write_table(tmp_path, ending, ROWS, HEADER), "price", "brand", "stocked")
    assert catalogue.labels == Texts(
        uids=("A-1", "A-2", "A-3"), texts=("Rubber boots", "Camping tent", "Head lamp")
    )
    brand = "Nordic" if ending.startswith(("csv", "tsv")) else " Nordic "
    assert catalogue.fields == (
        {"price": 29.9, "brand": "Acme", "stocked": True},
        {"price": 199, "stocked": False},
        {"price": 19.5, "brand": brand, "stocked": True},
    )
    assert catalogue.has_ids


def test_without_ids_the_text_is_one(tmp_path: Path) -> None:
    path = written(tmp_path, "title,price\nRed Boots,1\nhat,\nred  boots,1\n")
    catalogue = read(path, "price", label_id=None)
    assert catalogue.labels == Texts(uids=("red boots", "hat"), texts=("Red Boots", "hat"))
    assert catalogue.fields == ({"price": 1}, {})
    assert read(path, label_id=None).fields is None
    lines = written(tmp_path, "red boots\nhat\n", "txt")
    assert read(lines, label_id=None).labels.texts == ("red boots", "hat")


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "-2.5", " 3.5e2 "], [1, -2.5, 350.0]),
        (["1", "32E4"], ["1", "32E4"]),  # a code
        (["1", "32E0134"], ["1", "32E0134"]),
        (["340123451234512345", "7"], ["340123451234512345", "7"]),
        (["9007199254740993", "7"], ["9007199254740993", "7"]),  # no float is this number
        (["29.90", "19.95", "5"], [29.9, 19.95, 5]),
        (["29.9", "19.95"], [29.9, 19.95]),
        (["3.9", "3.10"], ["3.9", "3.10"]),  # versions
        (["0.1234567890123456789", "1"], ["0.1234567890123456789", "1"]),
        (["1,299.00", "1.5"], ["1,299.00", "1.5"]),
        (["n/a", "1.5"], ["n/a", "1.5"]),
        (["1.5e999", "1"], ["1.5e999", "1"]),
        (["1", "two"], ["1", "two"]),
        (["0012", "13"], ["0012", "13"]),  # codes, whose zeros count
        (["1_000", "7"], ["1_000", "7"]),
        (["nan", "1"], ["nan", "1"]),
        (["true", "FALSE"], [True, False]),
        (["true", "1"], ["true", "1"]),
        (["9007199254740992", "1"], [2**53, 1]),
        ([" a ", "b"], ["a", "b"]),
    ],
)
def test_the_cells_of_a_column_decide_about_its_type(
    tmp_path: Path, cells: list[str], values: list[Any]
) -> None:
    rows = "".join(f'label {row},"{cell}"\n' for row, cell in enumerate(["", *cells]))
    found = read(written(tmp_path, f"title,x\n{rows}"), "x", label_id=None).fields
    assert found is not None
    assert [fields.get("x") for fields in found] == [None, *values]
    assert [type(fields["x"]) for fields in found[1:]] == [*map(type, values)]


def test_lists_and_decimals(tmp_path: Path) -> None:
    lines = written(tmp_path, '{"title": "a", "x": ["b", "c"]}\n{"title": "d", "x": []}\n', "jsonl")
    assert read(lines, "x", label_id=None).fields == ({"x": ("b", "c")}, {})
    pyarrow = pytest.importorskip("pyarrow", reason="PARQUET NOT READ: no pyarrow")
    from pyarrow import parquet

    table = {"sku": [7, 8], "title": ["a", "b"], "x": [Decimal("1.50"), None]}
    parquet.write_table(pyarrow.table(table), tmp_path / "products.parquet")
    catalogue = read(tmp_path / "products.parquet", "x")
    assert catalogue.labels.uids == ("7", "8")
    assert catalogue.fields == ({"x": 1.5}, {})


@pytest.mark.parametrize(
    ("ending", "content", "said"),
    [
        ("csv", "title\na\n", ":1: sku: there is no such column; the columns are title"),
        ("csv", "sku,title,x\n1,,1\n", ":2: title: is empty"),
        ("csv", "sku,title,x\n,a,1\n", ":2: sku: is empty"),
        ("csv", "sku,title,x\n1,a,1\n1,b,1\n", ":3: sku: '1' has the text 'b', but 'a' in line 2"),
        ("csv", "sku,title,x\n1,a,1\n1,A,2\n", ":3: sku: '1' has other fields than in line 2"),
        ("csv", "sku,title,x\n", ": holds no rows"),
        ("csv", "sku,title,x\n1,a,\n", ": has no value in any row of x"),
        ("csv", f"sku,title,x\n1,a,{'y' * (MOST_CHARACTERS + 1)}\n", ":2: x: a name or a text has"),
        ("jsonl", '{"sku": 1, "title": "a", "x": {"y": 1}}\n', ":1: x: must be a string, a number"),
        ("jsonl", '{"sku": 1, "title": "a", "x": ["y", 2]}\n', ":1: x: must be a string, a number"),
        ("jsonl", f'{{"sku": 1, "title": "a", "x": {2**60}}}\n', f":1: x: {2**60} is no number"),
        ("jsonl", '{"sku": 1.5, "title": "a", "x": 1}\n', ":1: sku: must be a text, not float"),
        (
            "jsonl",
            f'{{"sku": 1, "title": "a", "x": {["y"] * (MOST_ENTRIES + 1)}}}\n'.replace("'", '"'),
            ":1: the label has 65 items in its lists; at most 64 are allowed",
        ),
    ],
)
def test_a_bad_table_is_an_error_with_its_line(
    tmp_path: Path, ending: str, content: str, said: str
) -> None:
    path = written(tmp_path, content, ending)
    with pytest.raises(InvalidData) as caught:
        read(path, "x")
    assert str(caught.value).startswith(f"{path}{said}")


def test_more_fields_than_a_posted_label_may_have(tmp_path: Path) -> None:
    names = [f"field {number}" for number in range(MOST_ENTRIES + 1)]
    content = f"title,{','.join(names)}\na{',1' * len(names)}\n"
    with pytest.raises(InvalidData, match=":2: the label has 65 fields; at most 64 are allowed"):
        read(written(tmp_path, content), *names, label_id=None)
    full = written(tmp_path, f"title,{','.join(names[:20])}\na{(',' + 'y' * 1_000) * 20}\n")
    with pytest.raises(InvalidData, match=r":2: the label has 20,\d+ bytes of names and values"):
        read(full, *names[:20], label_id=None)


# Aliases ---------------------------------------------------------------------------------------


def read_aliases(path: Path, *columns: str, **options: Any) -> tuple[tuple[str, ...], ...] | None:
    return read_catalogue(path, text="title", label_id="sku", aliases=columns, **options).aliases


@pytest.mark.parametrize("ending", FORMATS)
def test_a_label_has_the_aliases_of_all_its_columns_and_rows(tmp_path: Path, ending: str) -> None:
    rows = [
        ["A-1", "Rain boots", " gumboots | Rain  Boots|wellies", "7001"],
        ["A-2", "Tent", "", ""],
        ["A-1", "rain boots", "wellies", "7002"],
    ]
    path = write_table(tmp_path, ending, rows, ["sku", "title", "names", "code"])
    found = read_aliases(path, "names", "code")
    assert found == (("gumboots", "wellies", "7001", "7002"), ())
    assert read_aliases(path, "code") == (("7001", "7002"), ())
    assert read_aliases(path) is None


def test_aliases_may_be_lists_and_whole_numbers(tmp_path: Path) -> None:
    lines = (
        '{"sku": 1, "title": "a", "x": ["b", 7, " "]}\n{"sku": 2, "title": "c", "x": null}\n'
        '{"sku": 3, "title": "d", "x": 8}\n'
    )
    path = written(tmp_path, lines, "jsonl")
    assert read_aliases(path, "x") == (("b", "7"), (), ("8",))
    other = written(tmp_path, "sku,title,x\n1,a,b;c|d\n")
    assert read_aliases(other, "x", delimiter=";") == (("b", "c|d"),)


@pytest.mark.parametrize(
    ("ending", "content", "said"),
    [
        ("csv", "sku,title\n1,a\n", ":1: x: there is no such column; the columns are sku, title"),
        ("csv", "sku,title,x\n1,a,\n", ": has no alias in any row of x"),
        ("csv", f"sku,title,x\n1,a,{'y' * 2_049}\n", ":2: x: an alias has more than 2,048"),
        (
            "csv",
            f"sku,title,x\n1,a,{'|'.join(map(str, range(101)))}\n",
            ":2: x: the label has 101 aliases; at most 100 are allowed",
        ),
        ("jsonl", '{"sku": 1, "title": "a", "x": {}}\n', ":1: x: must be a text, not dict"),
        ("jsonl", '{"sku": 1, "title": "a", "x": [1.5]}\n', ":1: x: must be a text, not float"),
    ],
)
def test_bad_aliases_are_an_error_with_their_line(
    tmp_path: Path, ending: str, content: str, said: str
) -> None:
    path = written(tmp_path, content, ending)
    with pytest.raises(InvalidData) as caught:
        read_aliases(path, "x")
    assert str(caught.value).startswith(f"{path}{said}")


# Types -----------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.decimals(-(10**6), 10**6, places=2).map(str),
    st.decimals(0, 10, places=1).map(str),
    st.floats(allow_nan=False).map(str),
)
CODES = st.from_regex(r"[0-9]{1,3}([.,Ee-][0-9]{1,4}){0,2}", fullmatch=True)
WORDS = st.sampled_from(["n/a", "NaN", "true", "FALSE", "Acme", "-", "inf", "1_000", "0x1F", "٣"])
COLUMNS = st.one_of(
    st.lists(NUMBERS, min_size=1, max_size=8),
    st.lists(CODES, min_size=1, max_size=8),
    st.lists(st.one_of(NUMBERS, CODES, WORDS, st.just("")), min_size=1, max_size=8),
)


@settings(max_examples=300)
@given(cells=COLUMNS)
def test_a_number_is_what_its_cell_says_and_what_spoils_numbers_is_named(cells: list[str]) -> None:
    lines = list(enumerate(cells, start=2))
    column = typed_column(lines, "x", Path("t.csv"), given=None, are_texts=True)
    filled = {cell: value for cell, value in zip(cells, column.values, strict=True) if cell}
    assert [value is None for value in column.values] == [not cell for cell in cells]
    assert len({*map(type, filled.values())} - {int, float}) <= 1
    if all(isinstance(value, str) for value in filled.values()):
        assert all(cell == value for cell, value in filled.items())
    elif not any(isinstance(value, bool) for value in filled.values()):
        for cell, value in filled.items():
            assert Decimal(cell) == Decimal(repr(value)) and abs(value) <= 2**53
        points = {cell for cell in filled if "." in cell}
        assert len({filled[cell] for cell in points}) == len(points)  # no two texts are one number
    for note in column.notes:
        _, line, _, said = note.split(":", 3)
        assert said.startswith(f" {cells[int(line) - 2]!r} ") and "--field-type x=number" in said


@given(
    prices=st.lists(st.integers(0, 10**9), min_size=1, max_size=9),
    places=st.integers(1, 4),
    whole=st.booleans(),
)
def test_prices_with_as_many_decimals_are_numbers(
    prices: list[int], places: int, whole: bool
) -> None:
    cells = [f"{price / 10**places:.{places}f}" for price in prices] + ["199"] * whole
    lines = list(enumerate(cells))
    column = typed_column(lines, "x", Path("t.csv"), given=None, are_texts=True)
    assert column.values == list(map(float, cells)) and not column.notes


def test_a_type_may_be_given(tmp_path: Path) -> None:
    path = written(tmp_path, "title,x,y\na,0012,3\nb,n/a,4\nc,NaN,\nd,.5,true\n")
    catalogue = read(path, "x", "y", label_id=None, types={"x": "number", "y": "string"})
    assert catalogue.fields == ({"x": 12, "y": "3"}, {"y": "4"}, {}, {"x": 0.5, "y": "true"})
    assert catalogue.notes == (f"{path}:3: x: 'n/a' is taken for an empty cell (2 such cells)",)
    lines = '{"title": "a", "x": 3.5}\n{"title": "b", "x": "4"}\n{"title": "c", "x": true}\n'
    path = written(tmp_path, lines, "jsonl")
    catalogue = read(path, "x", label_id=None, types={"x": "string"})
    assert catalogue.fields == ({"x": "3.5"}, {"x": "4"}, {"x": "true"})
    for type_, said in (
        ("number", ":3: x: 'True' is no number"),
        ("boolean", ":1: x: '3.5' is ne"),
    ):
        with pytest.raises(InvalidData, match=said):
            read(path, "x", label_id=None, types={"x": type_})
    assert read(path, "x", label_id=None).notes == (
        f"{path}:1: x: '3.5' is a number, but values differ (1 number, 1 string, 1 boolean); no"
        " filter finds all of them; --field-type x=TYPE makes them alike",
    )


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("1,299.00", "'1,299.00' is no number; write it without separators of thousands"),
        ("1 299", "write it without separators"),
        ("29,90", "'29,90' is no number$"),
        ("9" * 18, f"{'9' * 18} is no number of at most 9,007,199,254,740,992 in size"),
        ("1e999", "1e999 is no number of at most"),
    ],
)
def test_a_cell_that_is_not_of_the_type_given_is_an_error(
    tmp_path: Path, cell: str, said: str
) -> None:
    path = written(tmp_path, f'title,x\na,5\nb,"{cell}"\n')
    with pytest.raises(InvalidData, match=f":3: x: .*{said}"):
        read(path, "x", label_id=None, types={"x": "number"})


# Names -----------------------------------------------------------------------------------------


def test_a_label_is_named_by_id_or_by_text() -> None:
    labels = Texts(uids=("7", "8", "9", "boots"), texts=("Boots", "hat", "Hat", "clogs"))
    catalogue = Catalogue(labels=labels, has_ids=True)
    assert [catalogue.id_of(named) for named in ("7", "BOOTS", "boots", "clogs")] == [
        *("7", "7", "boots", "boots")
    ]
    assert catalogue.id_of("Scarf") == "scarf"
    with pytest.raises(ValueError, match="'hat' is the text of 2 labels of the catalogue"):
        catalogue.id_of("hat")
    # An id that a label has by chance is not given to another text.
    other = Catalogue(labels=Texts(uids=("scarf",), texts=("tie",)), has_ids=True)
    assert other.id_of("SCARF") == "scarf~2"
