"""Label details are read as they were written."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from service.core.bundle.label_details import Details, LabelDetails, dump, parse
from service.core.files import text_store
from service.core.files.text_store import TextStore

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
details = st.builds(
    Details,
    queries=st.lists(texts, max_size=3).map(tuple),
    metadata=st.dictionaries(texts, texts, max_size=3),
    novel=st.booleans(),
    version=st.integers(min_value=0, max_value=2**53),
    rows=st.lists(st.integers(min_value=0, max_value=2**40), max_size=3).map(tuple),
)


def test_the_document_of_a_label() -> None:
    tent = Details(queries=("igloo",), metadata={"bid": "1"}, novel=True, version=17, rows=(3,))
    assert dump(tent) == (
        '{"queries":["igloo"],"metadata":{"bid":"1"},"novel":true,"version":17,"rows":[3]}'
    )


def test_a_label_without_details_has_an_empty_text() -> None:
    assert dump(Details()) == ""
    assert LabelDetails(None).at(5) == Details()
    assert LabelDetails(None).novel_columns() == []


def test_which_labels_are_novel(tmp_path: Path) -> None:
    written = [Details(), Details(novel=True), Details(version=3), Details(novel=True, version=4)]
    text_store.write(tmp_path / "details", [dump(details) for details in written])
    assert LabelDetails(TextStore(tmp_path / "details")).novel_columns() == [1, 3]


@given(details)
def test_parse_returns_what_was_dumped(written: Details) -> None:
    text = dump(written)
    assert (parse(text) if text else Details()) == written
