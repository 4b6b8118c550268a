"""JSON files are read as they were written; whatever is wrong is named with the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic.dataclasses import dataclass

from service.core.config import STRICT
from service.core.errors import InvalidData, InvalidInput
from training.documents import checked, read_document, read_json, write_json


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Facts:
    """Refuses a size above 9 itself."""

    size: int

    def __post_init__(self) -> None:
        if self.size > 9:
            raise InvalidInput("too large")


def facts(path: Path) -> Facts:
    document = read_document(path, format_name="facts", version=1)
    return checked(Facts, document, path=path, writer="write facts")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"format": "facts", "version": 1, "size": 3})
    assert read_json(tmp_path / "a.json")["size"] == facts(tmp_path / "a.json").size == 3


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_json, None, "cannot be read: No such file"),
        (read_json, "{", "not valid JSON"),
        (facts, "[]", "format: must be 'facts'"),
        (facts, '{"format": "else"}', "format: must be 'facts'"),
        (facts, '{"format": "facts", "version": 2}', "version: must be 1, the version that this"),
        (facts, '{"format": "facts", "version": true}', "version: must be 1"),
        (
            facts,
            '{"format": "facts", "version": 1, "size": "3"}',
            "size: is not what `write facts`",
        ),
        (facts, '{"format": "facts", "version": 1}', "size: is not what `write facts` writes"),
        (facts, '{"format": "facts", "version": 1, "size": 10}', "too large"),
    ],
)
def test_what_is_wrong_is_named(
    read: Callable[[Path], Any], content: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidData) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: {message}")
