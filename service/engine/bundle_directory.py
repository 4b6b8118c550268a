"""The folder that holds the bundles, and the choice of the one to open at the start."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from service.core.bundle import manifest
from service.core.changes import UseBundle
from service.core.errors import InvalidInput, UnknownBundle
from service.core.label_log import LabelLog

NAMED = 20  # most bundles that a message lists
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class BundleDirectory:
    """The folder that holds bundles by name, and the bundle that the service was started with."""

    folder: Path
    started_with: Path

    def path(self, name: str) -> Path:
        """Return a bundle's folder; raises `InvalidInput` for a name that leads outside.

        The bundle that the service was started with may lie elsewhere, such as on a read-only disk.
        A reload can still return to it by name.
        """
        if not NAME.fullmatch(name):
            raise InvalidInput(
                "must be a folder's name of letters, digits, '.', '_' and '-'", field="bundle"
            )
        folder = self.folder / name
        if name == self.started_with.name and not folder.exists():
            return self.started_with
        if not folder.resolve().is_relative_to(self.folder.resolve()):
            raise InvalidInput("is a link that leads out of the folder of bundles", field="bundle")
        return folder

    def existing(self, name: str) -> Path:
        """Return the folder of a bundle that exists; raises `InvalidInput`, or `UnknownBundle`."""
        folder = self.path(name)
        if not folder.is_dir():
            raise UnknownBundle(f"there is no bundle named {name!r}; {self._listed()}")
        return folder

    def _listed(self) -> str:
        folders = {self.started_with.name}
        with suppress(OSError):  # the folder cannot be listed
            folders |= {path.parent.name for path in self.folder.glob(f"*/{manifest.FILE_NAME}")}
        names = sorted(filter(NAME.fullmatch, folders))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"there are: {', '.join(names[:NAMED])}{more}"

    def configured(self) -> str:
        """Return the fingerprint of the bundle that the service was started with."""
        return manifest.fingerprint(manifest.read(self.started_with))

    def current(self, label_log: LabelLog) -> Path:
        """Return the bundle to open at the start.

        A restart opens the bundle of the last reload, which the label log names, unless the service
        is now started with another bundle than at that reload.
        """
        event = label_log.newest(UseBundle.kind)
        if event is None:
            return self.started_with
        reload_request = UseBundle.from_event(event)
        if reload_request.configured != self.configured():
            return self.started_with
        with suppress(InvalidInput):  # its folder was replaced by a link that leads outside
            folder = self.path(reload_request.bundle)
            if folder.is_dir():
                return folder
        log.warning(
            "the bundle that was last reloaded is gone; the configured one is served",
            extra={"bundle": reload_request.bundle},
        )
        return self.started_with
