"""A body is split where it is an object of known fields with a list of entries."""

import orjson
import pytest

from service.http.large.body_parts import body_parts


def parts(content: bytes, *, most: int | None = 3) -> tuple[dict[str, object], list[object]] | None:
    """The fields and the parsed entries of a body whose list is `labels`."""
    split = body_parts(content, "labels", known=("labels", "mode"), most=most)
    return split and (split.fields, list(split.parsed_entries()))


@pytest.mark.parametrize(
    "document",
    [
        {"labels": []},
        {"labels": [{"text": 'a "b" ]}', "queries": ["ü", "\u2028"]}, 1, None]},
        {"mode": {"deep": [1, 2]}, "labels": [[[]], "x"]},
    ],
)
@pytest.mark.parametrize("spaces", [None, orjson.OPT_INDENT_2])
def test_the_parts_are_those_of_the_whole(document: dict[str, object], spaces: int | None) -> None:
    fields = {name: value for name, value in document.items() if name != "labels"}
    assert parts(orjson.dumps(document, option=spaces)) == (fields, document["labels"])


def test_the_last_of_two_fields_of_a_name_counts_as_in_the_whole() -> None:
    assert parts(b'{"labels": [1], "labels": [2]}') == ({}, [2])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1]",
        b'{"labels": [1}',
        b'{"labels": [1]} 2',
        b'{"labels": {"a": 1}}',
        b'{"labels": null}',
        b'{"mode": 1}',
        b'{"labels": [], "other": 1}',
        b'{"labels": [1, 2, 3, 4]}',
        b'{"labels": [NaN]}',
        b"\xff",
        b'{"labels": ' + b"[" * 100_000,
    ],
)
def test_anything_else_is_left_whole(content: bytes) -> None:
    assert parts(content) is None


@pytest.mark.parametrize("entry", [b'"\\ud800"', b'"\xff"', b"01", b"[" * 2000 + b"]" * 2000])
def test_a_malformed_entry_is_refused_as_in_the_whole(entry: bytes) -> None:
    content = b'{"labels": [0, %s]}' % entry
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(content)
    try:
        split = parts(content)
    except orjson.JSONDecodeError:
        return
    assert split is None
