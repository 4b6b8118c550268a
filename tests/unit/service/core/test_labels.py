"""The label table: ids to columns and back, live labels over the bundle's, old tables unchanged."""

from dataclasses import replace

import pytest
from rpds import HashTrieSet

from service.core.bundle import Bundle
from service.core.errors import UnknownLabel
from service.core.labels import LabelTable
from service.core.types import Label
from tests.support.bundles import LABELS


@pytest.fixture
def table(trigram_bundle: Bundle) -> LabelTable:
    return LabelTable(base_ids=trigram_bundle.label_ids, base_texts=trigram_bundle.label_texts)


def test_the_bundles_labels_are_found_by_id_and_by_column(table: LabelTable) -> None:
    assert table.columns == len(LABELS)
    for column, (label_id, text) in enumerate(LABELS.items()):
        assert table.column(label_id) == column
        assert table.id_at(column) == label_id
        assert table.at(column) == table.require(label_id)
        assert table.at(column) == Label(index=column, id=label_id, text=text)


def test_an_unknown_id_is_none_or_an_error(table: LabelTable) -> None:
    assert table.column("kayak") is None
    assert table.get("kayak") is None
    with pytest.raises(UnknownLabel, match="'kayak'"):
        table.require("kayak")


def test_a_new_label_takes_the_next_column_and_the_old_table_never_hears_of_it(
    table: LabelTable,
) -> None:
    kayak = Label(index=len(LABELS), id="kayak", text="sea kayak", novel=True, version=1)
    later = table.put(kayak)
    assert later.columns == len(LABELS) + 1
    assert later.get("kayak") == later.at(len(LABELS)) == kayak
    assert table.columns == len(LABELS)
    assert table.get("kayak") is None


def test_a_label_that_is_put_again_keeps_its_column(table: LabelTable) -> None:
    first = table.put(Label(index=6, id="kayak", text="sea kayak"))
    again = first.put(Label(index=6, id="kayak", text="river kayak"))
    assert again.columns == first.columns
    assert again.require("kayak").text == "river kayak"
    assert first.require("kayak").text == "sea kayak"


def test_a_label_of_the_bundle_is_replaced_at_its_column(table: LabelTable) -> None:
    column = table.column("tent")
    later = table.put(Label(index=column, id="tent", text="dome tent", version=3))
    assert later.columns == table.columns
    assert later.require("tent").text == "dome tent"
    assert table.require("tent").text == LABELS["tent"]


def test_a_deleted_label_is_gone_until_it_is_put_again(table: LabelTable) -> None:
    column = table.column("tent")
    without = replace(table, deleted=HashTrieSet([column]))
    assert without.get("tent") is None
    assert without.column("tent") == column
    back = without.put(Label(index=column, id="tent", text="dome tent"))
    assert back.require("tent").text == "dome tent"
    assert without.get("tent") is None


def test_live_labels_stand_in_order_of_their_ids(table: LabelTable) -> None:
    for index, label_id in enumerate(["zip", "kayak", "axe"], start=6):
        table = table.put(Label(index=index, id=label_id, text=label_id))
    assert [label.id for label in table.page(after="", size=9)] == ["axe", "kayak", "zip"]
    gone = replace(table, deleted=HashTrieSet([table.column("kayak")]))
    assert [label.id for label in gone.page(after="", size=9)] == ["axe", "zip"]
