"""The folder in which bundles stand side by side, and which of them to open at the start."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from service.core.bundle import manifest
from service.core.changes import UseBundle
from service.core.errors import InvalidInput, UnknownBundle
from service.core.label_log import LabelLog

NAMED = 20  # bundles that a message lists, at most
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class BundleDirectory:
    """The folder that holds bundles by name, and the bundle that the service was started with."""

    folder: Path
    started_with: Path

    def path(self, name: str) -> Path:
        """The folder of a bundle; raises `InvalidInput` for a name that leads elsewhere."""
        if not NAME.fullmatch(name):
            raise InvalidInput(
                "must be a folder's name of letters, digits, '.', '_' and '-'", field="bundle"
            )
        folder = self.folder / name
        if not folder.resolve().is_relative_to(self.folder.resolve()):
            raise InvalidInput("is a link that leads out of the folder of bundles", field="bundle")
        return folder

    def existing(self, name: str) -> Path:
        """The folder of a bundle that exists; raises `InvalidInput`, or `UnknownBundle`."""
        folder = self.path(name)
        if not folder.is_dir():
            raise UnknownBundle(f"there is no bundle named {name!r}; {self._listed()}")
        return folder

    def _listed(self) -> str:
        try:
            folders = sorted(
                path.parent.name for path in self.folder.glob(f"*/{manifest.FILE_NAME}")
            )
        except OSError:  # it may be entered and not be read
            folders = []
        names = [name for name in folders if NAME.fullmatch(name)]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"there are: {', '.join(names[:NAMED])}{more}"

    def configured(self) -> str:
        """The fingerprint of the bundle that the service was started with."""
        return manifest.fingerprint(manifest.read(self.started_with))

    def current(self, label_log: LabelLog) -> Path:
        """The bundle to open at the start.

        The label log names the bundle of the last reload; a restart opens that one again.
        A start with another configured bundle than at that reload overrides it.
        """
        event = label_log.newest(UseBundle.kind)
        if event is None:
            return self.started_with
        reload_request = UseBundle.from_event(event)
        if reload_request.configured != self.configured():
            return self.started_with
        try:
            folder = self.path(reload_request.bundle)
            if folder.is_dir():
                return folder
        except InvalidInput:
            pass  # its folder was replaced by a link that leads elsewhere
        log.warning(
            "the bundle that was last reloaded is gone; the configured one is served",
            extra={"bundle": reload_request.bundle},
        )
        return self.started_with
