"""Changes of the memory as events of the label log, and back."""

from __future__ import annotations

from service.core.changes import CHANGES, Change, Item, VectorsOf, rows_of
from service.core.encoding.representer import ItemTexts, Representer
from service.core.errors import LogCorrupt
from service.core.label_log import NewEvent
from service.core.types import Event, Halves, NewInstance, NewItem, Role


def texts_of(item: Item) -> ItemTexts:
    """The texts whose vectors are an item's rows, in the order of the rows, each with its role."""
    if isinstance(item, NewInstance):
        return [(Role.QUERY, item.query)]
    if isinstance(item, NewItem):
        return [(Role.ITEM, item.text)]
    return [(Role.LABEL, item.text), *((Role.QUERY, query) for query in item.queries)]


def replayed(event: Event, representer: Representer) -> Change:
    """An event of the label log as a change of the memory.

    Texts are encoded again where another encoder or combiner wrote the event's vectors. Raises
    `LogCorrupt` for a body that does not hold what its kind requires.
    """

    def vectors_of(item: Item) -> Halves:
        if event.vectors is not None and event.encoder == representer.fingerprint:
            return event.vectors.reshape(rows_of(item), representer.dimension)
        [encoded] = representer.encode([texts_of(item)])
        return encoded.rows

    return change_of(event, vectors_of)


def change_of(event: Event, vectors_of: VectorsOf) -> Change:
    """An event as a change whose items have the rows that `vectors_of` returns.

    Raises `LogCorrupt` for a body that does not hold what its kind requires.
    """
    try:
        return CHANGES[event.kind].from_event(event, vectors_of)
    except (KeyError, TypeError, ValueError) as error:
        raise LogCorrupt(f"event {event.sequence} does not hold a {event.kind}") from error


def new_event(change: Change) -> NewEvent:
    """A change as an event for the label log to append."""
    return NewEvent(kind=change.kind, body=change.body(), vectors=change.vectors)
