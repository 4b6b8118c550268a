"""Rows of events: their chain of hashes, and the refusal of content that no version writes."""

from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.core.changes import PutLabel
from service.core.errors import LogCorrupt
from service.core.label_log.maintenance.recover import survey
from service.core.label_log.rows import Link, checksum, event_of, first_chain, next_chain, row_of
from service.core.label_log.schema import events
from tests.support.label_logs import Place, append

numbers = st.integers(-(2**63), 2**63 - 1)
documents = st.dictionaries(st.text(max_size=5), numbers | st.text(max_size=5), max_size=3)
json_values = st.none() | st.booleans() | numbers | st.text() | st.lists(numbers)
bodies = (
    st.binary(max_size=40) | documents.map(repr).map(str.encode) | json_values.map(orjson.dumps)
)


def content(body: bytes, vectors: bytes, *, sequence: int = 4) -> dict[str, Any]:
    values = {"sequence": sequence, "kind": PutLabel.kind, "body": body, "vectors": vectors}
    return {**values, "encoder": "e"}


def row(body: bytes, vectors: bytes) -> list[Any]:
    """A stored row with a correct checksum."""
    values = content(body, vectors)
    return [*values.values(), checksum(**values), 0.0, b""]


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


@given(body=documents, vectors=st.binary(max_size=20).filter(lambda vectors: len(vectors) % 2 == 0))
def test_an_object_and_whole_numbers_are_read(body: dict[str, Any], vectors: bytes) -> None:
    event = event_of(row(orjson.dumps(body), vectors), place="the log")
    assert event.body == orjson.loads(orjson.dumps(body))
    assert event.vectors is not None and event.vectors.tobytes() == vectors


@given(body=bodies, vectors=st.binary(max_size=20))
@example(body=b"[1]", vectors=b"")
@example(body=b"", vectors=b"")
@example(body=b"{}", vectors=b"odd")
def test_any_content_is_an_event_or_names_the_event(body: bytes, vectors: bytes) -> None:
    try:
        event = event_of(row(body, vectors), place="the log")
    except LogCorrupt as error:
        assert str(error).startswith("the log: event 4 cannot be read: ")
    else:
        assert isinstance(event.body, dict) and len(vectors) % 2 == 0


@given(body=st.binary(max_size=40), vectors=st.binary(max_size=20), bit=st.integers(0, 31))
def test_any_content_with_another_checksum_was_altered(
    body: bytes, vectors: bytes, bit: int
) -> None:
    stored = row(body, vectors)
    stored[5] ^= 1 << bit
    with pytest.raises(LogCorrupt, match="event 4 was altered: its checksum is wrong"):
        event_of(stored, place="the log")


@pytest.mark.parametrize(("body", "vectors"), [(b"{", b""), (b"[1]", b""), (b"{}", b"odd")])
def test_a_log_with_such_a_row_names_it_and_is_recovered_without_it(
    tmp_path: Path, body: bytes, vectors: bytes
) -> None:
    place = Place(tmp_path)
    with closing(place.open()) as log:
        append(log, "a")
        values = content(body, vectors, sequence=2)
        chain = next_chain(log.link_at(1).chain, **values)
        values |= {"checksum": checksum(**values), "written": 0.0, "chain": chain}
        with place.connected() as connection:
            connection.execute(events.insert(), values)
        append(log, "c")
        with pytest.raises(LogCorrupt, match=r"labels\.sqlite: event 2 cannot be read: "):
            list(log.read())
        assert str(survey(log)) == "whole are the events 1, 3; lost are 2"
        assert [event.body["id"] for event in log.read(after=2)] == ["c"]
