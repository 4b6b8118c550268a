"""What the label log says, as changes of the memory, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

import numpy as np

from service.core.encoding.representer import ItemTexts, Representer
from service.core.errors import LogCorrupt
from service.core.label_log import DELETE_LABEL, PUT_INSTANCE, PUT_LABEL, USE_BUNDLE, NewEvent
from service.core.memory.changes import Change, DeleteLabel, Passed, PutInstance, PutLabel
from service.core.types import Event, Halves, NewInstance, NewLabel, Role

Item = NewLabel | NewInstance


def label_event(label: NewLabel, vectors: Halves) -> NewEvent:
    """The event that creates or replaces a label; its rows as `Representer` makes them."""
    return NewEvent(kind=PUT_LABEL, body=asdict(label), vectors=vectors)


def instance_event(instance: NewInstance, vectors: Halves) -> NewEvent:
    """The event that adds a query with its labels; its rows as `Representer` makes them."""
    return NewEvent(kind=PUT_INSTANCE, body=asdict(instance), vectors=vectors)


def deletion_event(label_id: str) -> NewEvent:
    """The event that deletes a label."""
    return NewEvent(kind=DELETE_LABEL, body={"id": label_id}, vectors=_nothing())


def bundle_event(*, bundle: str, configured: str) -> NewEvent:
    """The event that puts the bundle named `bundle` in the place of the `configured` one."""
    body = {"bundle": bundle, "configured": configured}
    return NewEvent(kind=USE_BUNDLE, body=body, vectors=_nothing())


def texts_of(item: Item) -> ItemTexts:
    """What an item's rows are made from, each text with its role."""
    if isinstance(item, NewInstance):
        return [(Role.QUERY, item.query)]
    return [(Role.LABEL, item.text), *((Role.QUERY, query) for query in item.queries)]


def rows_of(item: Item) -> int:
    """How many rows of the memory an item takes."""
    return 1 if isinstance(item, NewInstance) else 1 + len(item.queries)


def replayed(event: Event, representer: Representer) -> Change:
    """An event of the log as a change of the memory; makes again what was made in another way.

    Raises `LogCorrupt` for a body that does not hold what its kind promises.
    """
    try:
        return _REPLAY[event.kind](event, representer)
    except (KeyError, TypeError, ValueError) as error:
        raise LogCorrupt(f"event {event.sequence} does not hold a {event.kind}") from error


def _replay_label(event: Event, representer: Representer) -> Change:
    label = NewLabel(**{**event.body, "queries": tuple(event.body["queries"])})
    vectors = _vectors(event, representer, label)
    return PutLabel(sequence=event.sequence, label=label, vectors=vectors)


def _replay_deletion(event: Event, _representer: Representer) -> Change:
    return DeleteLabel(sequence=event.sequence, id=event.body["id"])


def _replay_instance(event: Event, representer: Representer) -> Change:
    instance = NewInstance(query=event.body["query"], labels=tuple(event.body["labels"]))
    vectors = _vectors(event, representer, instance)
    return PutInstance(sequence=event.sequence, instance=instance, vectors=vectors)


def _replay_bundle(event: Event, _representer: Representer) -> Change:
    return Passed(sequence=event.sequence)


_REPLAY: Mapping[str, Callable[[Event, Representer], Change]] = {
    PUT_LABEL: _replay_label,
    DELETE_LABEL: _replay_deletion,
    PUT_INSTANCE: _replay_instance,
    USE_BUNDLE: _replay_bundle,
}


def _vectors(event: Event, representer: Representer, item: Item) -> Halves:
    if event.vectors is not None and event.encoder == representer.fingerprint:
        return event.vectors.reshape(rows_of(item), representer.dimension)
    [encoded] = representer.encode([texts_of(item)])
    return encoded.rows


def _nothing() -> Halves:
    return np.zeros((0, 0), np.float16)
