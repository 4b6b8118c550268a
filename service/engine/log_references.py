"""Which labels a label log takes for granted, and whether the bundle knows them.

A bundle's name and fingerprint change with every training, and so may some of its labels. What
tells that a log was begun for other data are the labels that its clicks and deletions name: those
that the log has not posted itself must come from the bundle.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice

from service.core.bundle.bundle import Bundle
from service.core.changes import DeleteItem, DeleteLabel, PutInstance, PutItem, PutLabel, UseBundle
from service.core.errors import OtherData, echoed
from service.core.types import Event

FEW = 2  # unknown labels, which a new training may have dropped: never a reason to refuse
SHOWN = 3  # unknown labels that a message names

log = logging.getLogger("keymatch")


class LogReferences:
    """Counts while events are read: `known` and `unknown` labels, and `clicks` on unknown ones.

    `void_items` counts writes of items, which a bundle without an item memory cannot take.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Look labels up in this bundle."""
        self._bundle = bundle
        self.known: set[str] = set()
        self.unknown: dict[str, None] = {}  # in the order of the log
        self.clicks = 0
        self.void_items = 0
        self._posted: set[str] = set()
        self._accepted = False  # whether a reload of this bundle is in the log

    @property
    def other_data(self) -> bool:
        """Whether the log was begun for other data, and nobody has accepted the bundle for it."""
        return (
            not self._accepted and len(self.unknown) > FEW and len(self.unknown) > len(self.known)
        )

    def watched(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events, each after it was looked at."""
        for event in events:
            self._note(event)
            yield event

    def report(self, *, allowed: bool) -> None:
        """Log what is unknown or void, if anything; raises `OtherData` unless it is `allowed`."""
        if self.void_items:
            log.warning(
                f"the bundle {self._bundle.manifest.name} has no item memory: {self.void_items}"
                " writes of items in the log have no effect while it is served",
                extra={"bundle": self._bundle.manifest.name, "void_items": self.void_items},
            )
        if not self.unknown:
            return
        named = f"{len(self.unknown)} of the {len(self.unknown) + len(self.known)} labels"
        name = self._bundle.manifest.name
        if self.other_data and not allowed:
            shown = ", ".join(map(echoed, islice(self.unknown, SHOWN)))
            raise OtherData(
                f"the label log was begun for other data: {named} that its clicks and deletions"
                f" take for granted are unknown to the bundle {name}, such as {shown}; use the"
                " state that belongs to this bundle, or allow it (serve --other-data, or"
                ' "other_data": true in a reload), and what the log says of these labels counts'
                " for nothing"
            )
        log.warning(
            f"{named} that clicks and deletions of the log take for granted are unknown to the"
            f" bundle {name}; {self.clicks} clicks lose votes",
            extra={"bundle": name, "unknown_labels": len(self.unknown), "clicks": self.clicks},
        )

    def _note(self, event: Event) -> None:
        body = event.body
        if event.kind == PutLabel.kind:
            self._posted.add(body.get("id", ""))
        elif event.kind == PutInstance.kind:
            known = [self._is_known(label_id) for label_id in body.get("labels", ())]
            self.clicks += not all(known)
        elif event.kind in (PutItem.kind, DeleteItem.kind):
            self.void_items += self._bundle.items is None
        elif event.kind == DeleteLabel.kind:
            self._is_known(body.get("id", ""))
        elif event.kind == UseBundle.kind and body.get("bundle") == self._bundle.folder.name:
            self._accepted = True

    def _is_known(self, label_id: str) -> bool:
        if label_id in self._posted or label_id in self.known:
            return True
        if label_id in self.unknown:
            return False
        found = self._bundle.label_ids.find(label_id) is not None
        if found:
            self.known.add(label_id)
        else:
            self.unknown[label_id] = None
        return found
