"""The label table maps ids to columns, adds posted labels, and leaves old tables unchanged."""

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle
from service.core.errors import UnknownLabel
from service.core.memory.label_table import LabelTable
from service.core.page_cursor import PageCursor
from service.core.text_identity import IdentityLookup, identity
from service.core.types import Label, NewLabel
from tests.support.tiny.bundles import LABELS


@pytest.fixture
def table(trigram_bundle: Bundle) -> LabelTable:
    return LabelTable(
        base_ids=trigram_bundle.label_ids,
        base_texts=trigram_bundle.label_texts,
        base_details=trigram_bundle.label_details,
        base_identities=IdentityLookup(trigram_bundle.label_texts),
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


@pytest.mark.parametrize(("label_id", "column"), [("kayak", 6), ("tent", 5)])
def test_a_label_keeps_its_column_when_it_is_put_again_and_old_tables_do_not_change(
    table: LabelTable, label_id: str, column: int
) -> None:
    """A new label takes the next column; a label of the bundle keeps its column."""
    before = table.get(label_id)
    first = table.put(Label(index=column, id=label_id, text="sea kayak", novel=True, version=1))
    again = first.put(Label(index=column, id=label_id, text="river kayak"))
    assert first.columns == again.columns == max(len(LABELS), column + 1)
    assert first.get(label_id) == first.at(column)
    assert [one.require(label_id).text for one in (first, again)] == ["sea kayak", "river kayak"]
    assert table.columns == len(LABELS)
    assert table.get(label_id) == before


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
    assert gone.page(size=9) == []


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
    assert [label.id for label in table.page(size=9)] == ["axe", "kayak", "zip"]
    assert [label.id for label in table.page(after=PageCursor.behind("axe"), size=1)] == ["kayak"]
    gone = table.delete(table.require("kayak"))
    assert [label.id for label in gone.page(size=9)] == ["axe", "zip"]


def posted(text: str, label_id: str = "") -> NewLabel:
    return NewLabel(id=label_id, text=text)


def with_labels(table: LabelTable, **texts: str) -> LabelTable:
    for label_id, text in texts.items():
        table = table.put(Label(index=table.columns, id=label_id, text=text))
    return table


def test_a_text_without_id_belongs_to_the_label_with_this_text(table: LabelTable) -> None:
    assert table.identified(posted("  CAMPING\ttent ")).id == "tent"
    assert (
        table.identified(posted("\uff43\uff41\uff4d\uff50\uff49\uff4e\uff47 tent\u200b")).id
        == "tent"
    )
    assert table.identified(posted("Camping Tent")).text == "Camping Tent"
    live = with_labels(table, pm="Password Manager")
    assert live.identified(posted("password manager")).id == "pm"


def test_a_new_text_without_id_gets_its_identity(table: LabelTable) -> None:
    assert table.identified(posted("Ice   AXE")).id == "ice axe"
    assert table.identified(posted("x" * 2048)).id == identity("X" * 2048)


def test_an_id_that_is_given_stays_as_it_is(table: LabelTable) -> None:
    given = posted("camping tent", "another tent")
    assert table.identified(given) is given


def test_of_labels_that_share_a_text_the_one_whose_id_it_makes_comes_first(
    table: LabelTable,
) -> None:
    shared = with_labels(table, sku1="Sleeping Bag", sku2="sleeping bag")
    assert shared.identified(posted("sleeping bag")).id == "sku1"
    assert with_labels(shared, **{"sleeping bag": "SLEEPING BAG"}).identified(
        posted("Sleeping Bag")
    ).id == ("sleeping bag")
    assert with_labels(table, cheap="camping tent").identified(posted("camping tent")).id == "tent"


def test_a_deleted_label_or_an_older_text_is_no_longer_known(table: LabelTable) -> None:
    assert table.delete(table.require("tent")).identified(posted("camping tent")).id == (
        "camping tent"
    )
    tarp = table.put(Label(index=table.require("tent").index, id="tent", text="tarp"))
    assert tarp.identified(posted("camping tent")).id == "camping tent"
    assert tarp.identified(posted("Tarp")).id == "tent"
    live = with_labels(table, pm="password manager")
    renamed = live.put(Label(index=live.require("pm").index, id="pm", text="vault"))
    assert renamed.identified(posted("password manager")).id == "password manager"
    assert renamed.identified(posted("VAULT")).id == "pm"
    gone = renamed.delete(renamed.require("pm"))
    assert gone.identified(posted("vault")).id == "vault"


def test_an_id_that_another_text_has_is_not_taken_from_it(table: LabelTable) -> None:
    """The text of `ab` was changed, so a later post of "AB" means a new label."""
    taken = with_labels(table, ab="Alpha Beta")
    assert taken.identified(posted("AB")).id == "ab~2"
    again = with_labels(taken, **{"ab~2": "AB"})
    assert again.identified(posted("ab")).id == "ab~2"
