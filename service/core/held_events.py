"""Which events of a label log a bundle holds already: those up to the snapshot that it is."""

from __future__ import annotations

from service.core.bundle.manifest import Manifest
from service.core.errors import InvalidInput, LogReplaced
from service.core.label_log import LabelLog
from service.core.label_log.links import Link


def held_version(facts: Manifest, label_log: LabelLog) -> int:
    """The last event of this log that a bundle's own rows reflect; 0 if it is no snapshot of it.

    Raises `LogError` for a log that does not hold what the bundle has from it.
    """
    return held_link(facts, label_log).sequence if facts.log == label_log.id else 0


def held_link(facts: Manifest, label_log: LabelLog) -> Link:
    """The last event of this log that a snapshot holds.

    Raises `InvalidInput` for a bundle that is no snapshot of this log, else as `held_version`.
    """
    if facts.log != label_log.id:
        raise InvalidInput(f"the bundle {facts.name} is no snapshot of {label_log.place}")
    version = facts.memory.version
    if facts.log_chain is None:  # a snapshot of a version that knew no chain
        newest = label_log.last_sequence()
        if newest < version:
            raise LogReplaced(
                f"{label_log.place} ends at event {newest}, but the bundle {facts.name} holds event"
                f" {version}: the log was cut or is an older copy"
            )
        return label_log.link_at(version)
    link = Link(sequence=version, chain=bytes.fromhex(facts.log_chain))
    label_log.require(link, knows=f"the bundle {facts.name} holds")
    return link
