"""Turns events of the label log into changes of the memory; finds which events a bundle holds."""

from __future__ import annotations

from service.core.bundle.manifest import Manifest
from service.core.changes import CHANGES, Change, Posted, VectorsOf, rows_of
from service.core.encoding.representer import ItemTexts, Representer
from service.core.errors import InvalidInput, LogCorrupt
from service.core.label_log import LabelLog
from service.core.label_log.rows import Link
from service.core.types import Event, Halves, NewInstance, NewItem, Role


def texts_of(item: Posted) -> ItemTexts:
    """Return the texts that become an item's rows, in order, each with its role."""
    if isinstance(item, NewInstance):
        return [(Role.QUERY, item.query)]
    if isinstance(item, NewItem):
        return [(Role.ITEM, item.text)]
    own = [(Role.LABEL, text) for text in (item.text, *item.aliases)]
    return [*own, *((Role.QUERY, query) for query in item.queries)]


def replayed(event: Event, representer: Representer) -> Change:
    """Return an event as a change. Texts are encoded again if another encoder made the vectors.

    Raises `LogCorrupt` if the body does not hold what its kind requires.
    """

    def vectors_of(item: Posted) -> Halves:
        if event.vectors is not None and event.encoder == representer.fingerprint:
            return event.vectors.reshape(rows_of(item), representer.dimension)
        [encoded] = representer.encode([texts_of(item)])
        return encoded.rows

    return change_of(event, vectors_of)


def change_of(event: Event, vectors_of: VectorsOf) -> Change:
    """Return an event as a change with the rows that `vectors_of` returns; raises `LogCorrupt`."""
    try:
        return CHANGES[event.kind].from_event(event, vectors_of)
    except (KeyError, TypeError, ValueError) as error:
        raise LogCorrupt(f"event {event.sequence} does not hold a {event.kind}") from error


def held_version(facts: Manifest, label_log: LabelLog) -> int:
    """Return the log's last event that a bundle's rows reflect; 0 if it is not a snapshot of it.

    Raises `LogError` if the log does not hold the events that the bundle has from it.
    """
    return held_link(facts, label_log).sequence if facts.log == label_log.id else 0


def held_link(facts: Manifest, label_log: LabelLog) -> Link:
    """Return the last event of this log that a snapshot holds.

    Raises `InvalidInput` if the bundle is not a snapshot of this log; else as `held_version`.
    """
    if facts.log != label_log.id:
        raise InvalidInput(f"the bundle {facts.name} is no snapshot of {label_log.place}")
    link = Link(sequence=facts.memory.version, chain=bytes.fromhex(facts.log_chain))
    label_log.require(link, knows=f"the bundle {facts.name} holds")
    return link
