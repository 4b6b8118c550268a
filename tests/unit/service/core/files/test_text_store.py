"""A text store reads every text, in any script, as it was written, and can find it."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.core.errors import BundleAltered
from service.core.files import text_store
from service.core.files.text_store import TextStore

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def store(folder: Path, *content: str, lookup: bool = True) -> TextStore:
    text_store.write(folder / "store", content, lookup=lookup)
    return TextStore(folder / "store", lookup=lookup)


@settings(max_examples=60)
@given(st.lists(any_text, max_size=8), any_text)
@example([], "anything")
@example(["", ""], "")
@example(["\U0001f600", "\ufffd", "é"], "\ufffd")  # in another order in UTF-16 than in UTF-8
def test_every_text_is_read_as_written_and_found(content: list[str], other: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        opened = store(Path(folder), *content)
        assert list(opened) == content
        assert len(opened) == len(content)
        with pytest.raises(IndexError):
            opened[len(content)]
        for text in content:
            assert opened[opened.find(text)] == text
        assert [content[place] for place in opened.filled()] == [text for text in content if text]
        assert (opened.find(other) is None) == (other not in content)
        above = opened.order[opened.place_above(other) :].tolist()
        assert [opened[place] for place in above] == sorted(t for t in content if t > other)


def test_find_needs_a_store_with_lookup(tmp_path: Path) -> None:
    opened = store(tmp_path, "a", lookup=False)
    for ask in (opened.find, opened.place_above):
        with pytest.raises(TypeError, match="without lookup"):
            ask("a")


@pytest.mark.parametrize("content", [b"", b"shor", b"longer than it was"])
def test_a_store_whose_size_contradicts_its_offsets_is_refused(
    tmp_path: Path, content: bytes
) -> None:
    store(tmp_path, "short", lookup=False)
    (tmp_path / "store.bin").write_bytes(content)
    with pytest.raises(BundleAltered, match=r"store\.bin has"):
        TextStore(tmp_path / "store")
