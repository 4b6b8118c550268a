"""What the label log says, as changes of the memory, and back."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from service.core.encoder import Encoder, encode
from service.core.errors import LogCorrupt
from service.core.label_log import PUT_LABEL, NewEvent
from service.core.memory import PutLabel
from service.core.types import Event, Halves, NewLabel, Role


def label_event(label: NewLabel, vectors: Halves) -> NewEvent:
    """The event that creates or replaces a label; vectors as `encode_label` makes them."""
    return NewEvent(kind=PUT_LABEL, body=asdict(label), vectors=vectors)


def encode_label(encoder: Encoder, label: NewLabel) -> Halves:
    """The rows of a label, fp16 [1 + queries, d]: its text's, then those of its known queries."""
    rows = [encode(encoder, [label.text], role=Role.LABEL)]
    if label.queries:
        rows.append(encode(encoder, label.queries, role=Role.QUERY))
    return np.concatenate(rows).astype(np.float16)


def replayed(event: Event, encoder: Encoder) -> PutLabel:
    """An event of the log as a change of the memory; encodes again what another encoder wrote.

    Raises `LogCorrupt` for a body that is not a label.
    """
    try:
        label = NewLabel(**{**event.body, "queries": tuple(event.body["queries"])})
    except (KeyError, TypeError) as error:
        raise LogCorrupt(f"event {event.sequence} does not hold a label") from error
    if event.vectors is not None and event.encoder == encoder.fingerprint:
        vectors = event.vectors.reshape(1 + len(label.queries), encoder.dimension)
    else:
        vectors = encode_label(encoder, label)
    return PutLabel(sequence=event.sequence, label=label, vectors=vectors)
