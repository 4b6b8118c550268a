"""The chain tells a log from every other log that has as many events."""

import shutil
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

import pytest

from service.core.errors import LogCorrupt, LogReplaced
from service.core.label_log import LabelLog, open_log
from service.core.label_log.chain import first_chain, next_chain
from service.core.label_log.links import Link
from service.core.label_log.newest_note import FILE_NAME as NOTE
from service.core.label_log.rows import row_of
from tests.support.label_logs import Place, append


def test_a_chain_is_the_hash_of_the_one_before_and_of_the_event() -> None:
    def digest(content: bytes) -> bytes:
        return blake2b(content, digest_size=16).digest()

    assert first_chain("0f") == digest(b"0f")
    chain = next_chain(
        b"before", sequence=7, kind="label.put", body=b"{}", vectors=b"\x01\x02", encoder="e"
    )
    assert chain == digest(b"before7\0label.put\0{}\0\x01\x02\0e")


def test_each_event_follows_from_the_one_before(three: Place) -> None:
    with closing(three.open()) as log:
        links = [log.link_at(number) for number in range(4)]
        assert links[0] == Link(sequence=0, chain=first_chain(log.id))
        for before, link, event in zip(links, links[1:], log.read(), strict=False):
            assert row_of(event, before=before.chain)["chain"] == link.chain


def test_an_event_that_was_written_anew_with_its_checksum_is_detected(three: Place) -> None:
    """As by somebody who knows how checksums are computed."""
    with closing(three.open()) as log:
        [second] = log.read(after=1, until=2)
        second.body["text"] = "another text"
        forged = row_of(second, before=log.link_at(1).chain)
    place = "UPDATE events SET body = :body, checksum = :checksum"
    three.tamper(
        f"{place}, chain = :chain WHERE sequence = 2",
        body=forged["body"], checksum=forged["checksum"], chain=forged["chain"],
    )  # fmt: skip
    with pytest.raises(LogCorrupt, match="event 3 does not follow from the events before it"):
        three.ids()


@pytest.mark.parametrize("chain", [b"", bytes(16)])
def test_an_altered_chain_is_detected(three: Place, chain: bytes) -> None:
    three.tamper("UPDATE events SET chain = :chain WHERE sequence = 2", chain=chain)
    with pytest.raises(LogCorrupt, match="event 2 "):
        three.ids()


def test_a_chain_of_a_wrong_type_is_detected(tmp_path: Path) -> None:
    """Only SQLite stores such a value."""
    place = Place(tmp_path)
    with closing(place.open()) as log:
        append(log, "a", "b")
        place.tamper("UPDATE events SET chain = 'text' WHERE sequence = 1")
        with pytest.raises(LogCorrupt, match="event 1 was altered: its chain is no hash"):
            log.link_at(1)


def test_what_a_process_has_only_read_must_stay_in_the_log(three: Place) -> None:
    """As a replica, before a failover to a database that lacks the newest events."""
    with closing(three.open()) as log:
        list(log.read())
        three.tamper("DELETE FROM events WHERE sequence = 3")
        with pytest.raises(LogReplaced, match="ends at event 2, but this process has written or"):
            append(log, "another third")
        assert log.last_sequence() == 2


def test_a_log_that_went_on_by_itself_is_not_written(three: Place) -> None:
    """It has as many events as this process knows, and more: only the chain tells them apart."""
    with closing(three.open()) as log:
        list(log.read())
        three.tamper("DELETE FROM events WHERE sequence = 3")
        if isinstance(three.state, Path):
            (three.state / NOTE).unlink()
        with closing(three.open()) as other:
            append(other, "another c", "d", "e")
        with pytest.raises(LogReplaced, match="has another event 3 than this process has written"):
            append(log, "f")
        assert log.last_sequence() == 5


def test_what_others_append_must_follow_from_what_is_known(log: LabelLog, place: Place) -> None:
    append(log, "a")
    with closing(place.open()) as other:
        append(other, "b")
    place.tamper("UPDATE events SET chain = :chain WHERE sequence = 2", chain=bytes(16))
    with pytest.raises(LogCorrupt, match="event 2 does not follow"):
        list(log.read(after=1))


def test_a_link_is_found_in_a_copy_and_in_no_other_log(three: Place, tmp_path: Path) -> None:
    with closing(three.open()) as log:
        link = log.link_at(2)
        log.require(link, knows="I know")
    with closing(open_log(tmp_path / "other")) as other:
        append(other, "a", "b", "c")
        with pytest.raises(LogReplaced, match="has another event 2 than I know"):
            other.require(link, knows="I know")
    if isinstance(three.state, Path):
        shutil.copytree(three.state, tmp_path / "copy")
        with closing(open_log(tmp_path / "copy")) as copy:
            copy.require(link, knows="I know")


def test_what_is_not_found_again_after_the_commit_is_not_acknowledged(
    log: LabelLog, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, "a")
    require_written = log._database.require_written

    def lost_meanwhile(newest: Link) -> None:
        place.tamper("DELETE FROM events WHERE sequence = 2")
        require_written(newest)

    monkeypatch.setattr(log._database, "require_written", lost_meanwhile)
    with pytest.raises(LogReplaced, match="ends at event 1, but this process has "):
        append(log, "b")
