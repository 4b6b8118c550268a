"""Items that one child process encodes, and how long and how often that is tried."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic

from service.core.changes import Item, rows_of
from service.core.encoding.representer import EncodedItem

# A second child may die for another reason than the items; three deaths are the items' fault.
MOST_DEATHS = 2
# A chunk is encoded in milliseconds, and in a second by a child that others leave 4 % of a core.
SECONDS_A_TEXT = 0.1
LATE_PATIENCE = 0.25  # the share of a client's patience that a chunk may take beside its texts
MOST_LATE = 1  # children that may be late over one chunk: a client waits no longer


@dataclass(kw_only=True, eq=False)
class EncodingChunk:
    """Items that one child encodes into rows of `dimension`; `future` gets them.

    A client waits for `patience` seconds since `submitted`, a time of `monotonic`. `deaths` counts
    the children that have died meanwhile, `late` those of them that did not answer in time.
    """

    items: Sequence[Item]
    dimension: int
    patience: float
    submitted: float = field(default_factory=monotonic)
    deaths: int = 0
    late: int = 0
    future: Future[list[EncodedItem]] = field(default_factory=Future)

    @property
    def seconds(self) -> float:
        """How long a child may take."""
        texts = sum(rows_of(item) for item in self.items)
        return self.patience * LATE_PATIENCE + SECONDS_A_TEXT * texts

    @property
    def hopeless(self) -> bool:
        """Whether another child would be lost over it, or nobody waits for it."""
        lost = self.deaths > MOST_DEATHS or self.late > MOST_LATE
        return lost or monotonic() > self.submitted + self.patience
