"""The label table maps ids to columns, adds posted labels, and leaves old tables unchanged."""

from dataclasses import replace

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.label_table import LabelTable
from service.core.page_cursor import PageCursor
from service.core.tenant import Tenant
from service.core.text_identity import identity
from service.core.types import Label, NewLabel
from tests.support.tiny.bundles import LABELS


@pytest.fixture
def table(trigram_bundle: Bundle) -> LabelTable:
    return KnowledgeMemory(trigram_bundle).view.labels


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
    gone = back.delete(back.require("tent"))  # this one is not in the bundle
    assert (gone.get("tent"), gone.page(size=9)) == (None, [])
    assert (len(gone), gone.columns) == (len(LABELS) - 1, len(LABELS) + 1)


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


def id_of(table: LabelTable, text: str) -> str:
    """Return the id of a label that is posted without one."""
    return table.identified(NewLabel(id="", text=text)).id


def with_labels(table: LabelTable, **texts: str) -> LabelTable:
    for label_id, text in texts.items():
        table = table.put(Label(index=table.columns, id=label_id, text=text))
    return table


def test_a_text_without_id_belongs_to_the_label_with_this_text(table: LabelTable) -> None:
    for text in ("  CAMPING\ttent ", "\uff43\uff41\uff4d\uff50\uff49\uff4e\uff47 tent\u200b"):
        assert table.identified(NewLabel(id="", text=text)) == NewLabel(id="tent", text=text)
    live = with_labels(table, pm="Password Manager")
    assert id_of(live, "password manager") == "pm"
    given = NewLabel(id="another tent", text="camping tent")
    assert table.identified(given) is given


def test_a_new_text_without_id_gets_its_identity(table: LabelTable) -> None:
    assert id_of(table, "Ice   AXE") == "ice axe"
    assert id_of(table, "x" * 2048) == identity("X" * 2048)


def test_of_labels_that_share_a_text_the_one_whose_id_it_makes_comes_first(
    table: LabelTable,
) -> None:
    shared = with_labels(table, sku1="Sleeping Bag", sku2="sleeping bag")
    assert id_of(shared, "sleeping bag") == "sku1"
    named = with_labels(shared, **{"sleeping bag": "SLEEPING BAG"})
    assert id_of(named, "Sleeping Bag") == "sleeping bag"
    assert id_of(with_labels(table, cheap="camping tent"), "camping tent") == "tent"


def test_a_deleted_label_or_an_older_text_is_no_longer_known(table: LabelTable) -> None:
    both = with_labels(table, pm="password manager")
    for label_id, text in (("tent", "camping tent"), ("pm", "password manager")):
        label = both.require(label_id)
        renamed = both.put(replace(label, text="Tarp"))
        assert id_of(renamed, text) == text
        assert id_of(renamed, "TARP") == label_id
        assert id_of(renamed.delete(renamed.require(label_id)), "tarp") == "tarp"
        assert id_of(both.delete(label), text) == text


def test_an_id_that_another_text_has_is_not_taken_from_it(table: LabelTable) -> None:
    """The text of `ab` was changed, so a later post of "AB" means a new label."""
    taken = with_labels(table, ab="Alpha Beta")
    assert id_of(taken, "AB") == "ab~2"
    assert id_of(with_labels(taken, **{"ab~2": "AB"}), "ab") == "ab~2"


ACME, APEX = Tenant("shop", "acme"), Tenant("shop", "apex")


def test_a_text_belongs_to_a_tenants_own_label_or_to_any_of_those_without_tenant(
    table: LabelTable,
) -> None:
    """Whether a tenant posted the label, or somebody else did for it."""
    for number, (label_id, shop) in enumerate(
        [
            ("shop=acme::1", "acme"),
            ("plain", "apex"),
            ("x=y::odd", "apex"),  # an id that looks like one of a tenant
            ("shop=apex::4", "acme"),  # whose value somebody else has changed
            ("shop=apex::5", "apex"),
        ]
    ):
        column = table.columns
        posted = Label(index=column, id=label_id, text="Gift card", metadata={"shop": shop})
        before, table = table, table.put(replace(posted, version=number))
        assert before.columns == column
    own = NewLabel(text=" gift CARD", id="")
    assert table.identified(own).id == table.of(ACME).identified(own).id == "shop=acme::1"
    assert table.of(APEX).identified(own).id == "plain"
    without = table.delete(table.require("plain"))
    assert without.of(APEX).identified(own).id == "x=y::odd"
    without = without.delete(without.require("x=y::odd"))
    assert without.of(APEX).identified(own).id == "shop=apex::5"
    without = without.delete(without.require("shop=acme::1"))
    assert without.of(ACME).identified(own).id == "shop=apex::4"
    assert without.identified(own).id == "shop=apex::4"


@pytest.mark.parametrize("stored", ["shop=acme::{}", "plain {}"])
def test_a_text_of_many_foreign_labels_is_found_without_reading_them(
    table: LabelTable, monkeypatch: pytest.MonkeyPatch, stored: str
) -> None:
    for number in range(500):
        foreign = Label(index=table.columns, id=stored.format(number), text="gift card")
        table = table.put(replace(foreign, metadata={"shop": "acme"}))
    asked: list[int] = []
    monkeypatch.setattr(LabelTable, "_owns", lambda _, column: bool(asked.append(column)))
    own = table.of(APEX).identified(NewLabel(id="", text="gift card"))
    assert own.id == "shop=apex::gift card" and not asked


def test_a_page_of_some_labels_is_the_whole_one_without_the_others(table: LabelTable) -> None:
    """Whether or not the whole table, or the tenant's, has sorted its ids before."""
    for number in range(40):
        shop = {"shop": "ab"[number % 2]}
        label_id = f"shop=a::{number * 7 % 40}"
        table = table.put(Label(index=table.columns, id=label_id, text="a", metadata=shop))
    kept = np.arange(table.columns) % 3 > 0
    kept[table.deleted] = False
    for whole in (table, table.of(Tenant("shop", "a"))):
        for _ in range(2):
            found = [label.id for label in whole.only(kept).page(size=100)]
            assert found == [one.id for one in whole.page(size=100) if kept[one.index]]
