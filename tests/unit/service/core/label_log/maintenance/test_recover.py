"""The undamaged events of a damaged log are named and saved into a new log."""

from contextlib import closing
from pathlib import Path

import pytest

from service.core.label_log.maintenance.check import stored_events
from service.core.label_log.maintenance.recover import explained, recover, survey
from tests.support.label_logs import Place, append

NAMES = [f"label {number}" for number in range(400)]


def contents(place: Place) -> dict[str, object]:
    """Map each event's label id to its text, vectors and time of writing."""
    with closing(place.open(create=False)) as log:
        return {
            stored.event.body["id"]: (
                stored.event.body["text"], bytes(stored.event.vectors), stored.written
            )
            for stored in stored_events(log)
        }  # fmt: skip


def test_altered_and_missing_events_are_named_and_the_others_saved(
    place: Place, tmp_path: Path
) -> None:
    with closing(place.open()) as log:
        append(log, "a", "b", "c", "d", "e", "f")
    before = contents(place)
    place.tamper("UPDATE events SET encoder = 'x' WHERE sequence = 2")
    place.tamper("DELETE FROM events WHERE sequence IN (4, 5)")
    new = Place(tmp_path / "new")

    with closing(place.open(create=False)) as damaged, closing(new.open()) as target:
        found = recover(damaged, target)
        old_id = damaged.id

    assert str(found) == "whole are the events 1, 3, 6; lost are 2, 4-5"
    assert new.ids() == ["a", "c", "f"]
    assert contents(new) == {name: before[name] for name in ("a", "c", "f")}
    with closing(new.open()) as log:
        assert log.id != old_id
        assert [event.sequence for event in append(log, "g")] == [4]


@pytest.mark.parametrize("part", [0.4, 0.6, 0.97])
def test_a_damaged_page_hides_only_its_own_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    monkeypatch.setattr("service.core.label_log.maintenance.recover.UNREADABLE_AT_END", 300)
    place = Place(tmp_path / "old")
    with closing(place.open()) as log:
        append(log, *NAMES)
    file = tmp_path / "old" / "labels.sqlite"
    content = bytearray(file.read_bytes())
    start = int(len(content) * part) // 4096 * 4096
    content[start : start + 4096] = b"\xff" * 4096
    file.write_bytes(content)

    new = Place(tmp_path / "new")
    with closing(place.open(create=False)) as damaged, closing(new.open()) as target:
        found = recover(damaged, target)
        assert survey(damaged) == found

    saved = new.ids()
    whole = [n for first, last in found.whole for n in range(first, last + 1)]
    assert saved == [NAMES[number - 1] for number in whole]
    assert len(saved) > 300


def test_an_error_of_a_damaged_log_says_what_to_do(three: Place, tmp_path: Path) -> None:
    new = Place(tmp_path / "new")
    with closing(three.open(create=False)) as log, closing(new.open()) as target:
        assert recover(log, target).lost == []
    assert new.ids() == ["a", "b", "c"]
    three.tamper("DELETE FROM events WHERE sequence = 2")
    with closing(three.open(create=False)) as log:
        with pytest.raises(Exception, match="event 2 is missing") as caught:
            list(log.read())
        said = str(explained(log, caught.value))
    assert "event 2 is missing; whole are the events 1, 3; lost are 2. " in said
    assert "log --recover NEW" in said
