"""The label table: ids and columns, labels posted since the bundle, old tables unchanged."""

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle
from service.core.errors import UnknownLabel
from service.core.memory.label_table import LabelTable
from service.core.types import Label
from tests.support.tiny.bundles import LABELS


@pytest.fixture
def table(trigram_bundle: Bundle) -> LabelTable:
    return LabelTable(
        base_ids=trigram_bundle.label_ids,
        base_texts=trigram_bundle.label_texts,
        base_details=trigram_bundle.label_details,
        columns=trigram_bundle.labels,
    )


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


def test_a_new_label_takes_the_next_column_and_the_old_table_does_not_change(
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


def test_a_deleted_label_is_gone_and_its_id_gets_another_column(table: LabelTable) -> None:
    tent = table.require("tent")
    deleted = table.delete(tent)
    assert deleted.get("tent") is deleted.column("tent") is None
    assert (len(deleted), deleted.columns) == (len(LABELS) - 1, len(LABELS))
    back = deleted.put(Label(index=deleted.columns, id="tent", text="dome tent", novel=True))
    assert back.require("tent").text == "dome tent"
    assert back.column("tent") == len(LABELS)
    assert (len(back), back.columns) == (len(LABELS), len(LABELS) + 1)
    assert deleted.get("tent") is None
    assert table.require("tent") == tent


def test_a_label_that_is_not_in_the_bundle_is_deleted_as_well(table: LabelTable) -> None:
    kayak = Label(index=6, id="kayak", text="sea kayak")
    gone = table.put(kayak).delete(kayak)
    assert gone.get("kayak") is None
    assert (len(gone), gone.columns) == (len(LABELS), len(LABELS) + 1)
    assert gone.page(after="", size=9) == []


@pytest.mark.parametrize("order", [(0, 3, 5), (5, 3, 0), (3, 0, 5)])
def test_columns_of_deleted_labels_are_told_from_others(
    table: LabelTable, order: tuple[int, ...]
) -> None:
    columns = np.array([5, 0, 1, 3, 3, 4, 9], np.int32)
    assert not table.is_deleted(columns).any()
    for column in order:
        table = table.delete(table.at(column))
    assert table.deleted.tolist() == [0, 3, 5]
    assert table.is_deleted(columns).tolist() == [True, True, False, True, True, False, False]
    assert table.is_deleted(columns[:0]).tolist() == []


def test_live_labels_stand_in_order_of_their_ids(table: LabelTable) -> None:
    for index, label_id in enumerate(["zip", "kayak", "axe"], start=6):
        table = table.put(Label(index=index, id=label_id, text=label_id))
    assert [label.id for label in table.page(after="", size=9)] == ["axe", "kayak", "zip"]
    assert [label.id for label in table.page(after="axe", size=1)] == ["kayak"]
    gone = table.delete(table.require("kayak"))
    assert [label.id for label in gone.page(after="", size=9)] == ["axe", "zip"]
