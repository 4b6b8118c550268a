"""What a cut would lose of the items that only the log holds."""

from service.core.changes import DeleteItem, PutItem, PutLabel
from service.core.label_log import LabelLog
from service.core.label_log.maintenance.compact import compact
from service.core.label_log.maintenance.lost_items import lost_items
from tests.support.label_logs import Place, event


def write(log: LabelLog, *events: tuple[str, str]) -> None:
    """Append an event of each kind and id."""
    with log.exclusive() as appending:
        appending.append([event(name, kind=kind) for kind, name in events], encoder="e")


def test_the_newest_write_of_an_item_counts(log: LabelLog) -> None:
    write(
        log,
        (PutItem.kind, "twice"),  # 1
        (PutItem.kind, "twice"),
        (PutItem.kind, "gone"),
        (DeleteItem.kind, "gone"),  # 4
        (PutLabel.kind, "label"),
        (PutItem.kind, "later"),  # 6
        (PutItem.kind, "later"),
    )
    lost = lost_items(log, until=6)
    assert (lost.put, lost.deleted) == ({"twice"}, {"gone"})
    assert str(lost) == "1 item that was put and 1 deletion of an item"
    assert lost_items(log, until=7).put == {"twice", "later"}
    assert str(lost_items(log, until=2)) == "1 item that was put"


def test_labels_alone_are_no_loss(log: LabelLog) -> None:
    write(log, (PutLabel.kind, "a"), (PutLabel.kind, "b"))
    assert not lost_items(log, until=2)


def test_a_damaged_event_of_a_label_may_be_cut(log: LabelLog, place: Place) -> None:
    write(log, (PutItem.kind, "item"), (PutLabel.kind, "label"), (PutLabel.kind, "last"))
    place.tamper("UPDATE events SET body = :body WHERE sequence = 2", body=b"{}")
    assert lost_items(log, until=3).put == {"item"}


def test_what_was_cut_before_is_not_counted_again(log: LabelLog) -> None:
    write(log, (PutItem.kind, "cut"), (PutItem.kind, "kept"), (PutLabel.kind, "last"))
    compact(log, log.link_at(1))
    assert lost_items(log, until=3).put == {"kept"}
