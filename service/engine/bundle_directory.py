"""The folder or URL that holds the bundles, and the choice of the one to open at the start."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from service.command_line import DEFAULT_CACHE
from service.core.bundle import manifest
from service.core.bundle.object_store import (
    BundleCache,
    checked_url,
    exists,
    is_url,
    names_below,
)
from service.core.changes import UseBundle
from service.core.errors import BundleError, InvalidInput, StoreError, UnknownBundle, Unwritable
from service.core.label_log import LabelLog

NAMED = 20  # most bundles that a message lists
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class BundleDirectory:
    """The folder or URL that holds bundles by name, and the bundle that the service started with.

    With a `url`, bundles are copies in `cache`, and `folder` holds a snapshot until it is pushed.
    """

    folder: Path
    started_with: Path
    url: str = ""
    cache: BundleCache = field(default_factory=lambda: BundleCache(DEFAULT_CACHE))

    @classmethod
    def of(
        cls, started_with: Path, bundles: Path | str | None, cache: Path = DEFAULT_CACHE
    ) -> BundleDirectory:
        """Use the folder or URL `bundles`, by default the folder that contains `started_with`.

        Raises `InvalidConfig` or `MissingExtra` for a URL that cannot be used.
        """
        if bundles is None or not is_url(bundles):
            folder = Path(bundles or started_with.absolute().parent)
            return cls(folder=folder, started_with=started_with)
        kept = BundleCache(cache)
        return cls(
            folder=kept.snapshots,
            started_with=started_with,
            url=checked_url(str(bundles)),
            cache=kept,
        )

    def name(self, place: str) -> str:
        """Return the name of a bundle that a name or URL stands for.

        Raises `InvalidInput` for one that leads outside.
        """
        if not is_url(place):
            name = place
        elif self.url and place.startswith(f"{self.url}/"):
            name = place.removeprefix(f"{self.url}/")
        else:
            where = f"directly below {self.url}" if self.url else "a folder's name here, not a URL"
            raise InvalidInput(f"must be {where}, as --bundles says", field="bundle")
        if not NAME.fullmatch(name):
            raise InvalidInput(
                "must be a folder's name of letters, digits, '.', '_' and '-'", field="bundle"
            )
        return name

    def path(self, name: str) -> Path:
        """Return a bundle's folder; raises `InvalidInput` for a name that leads outside.

        The bundle that the service was started with may lie elsewhere, such as on a read-only disk.
        A reload can still return to it by name.
        """
        folder = self.folder / self.name(name)
        if name == self.started_with.name and not folder.exists():
            return self.started_with
        if not folder.resolve().is_relative_to(self.folder.resolve()):
            raise InvalidInput("is a link that leads out of the folder of bundles", field="bundle")
        return folder

    def new(self, name: str) -> str:
        """Return the folder or URL of a new bundle.

        Raises `InvalidInput` if it exists or leads outside, or `StoreError`.
        """
        place = f"{self.url}/{self.name(name)}" if self.url else str(self.path(name))
        if exists(place) if self.url else Path(place).exists():
            raise InvalidInput(f"a bundle named {name!r} exists already", field="bundle")
        return place

    def existing(self, name: str) -> Path:
        """Return the folder of a bundle that exists, after it was fetched if there is a `url`.

        Raises `InvalidInput`, `UnknownBundle` or, with a `url`, `BundleError`.
        """
        folder = self._fetched(name) if self.url else self.path(name)
        if folder is None or not folder.is_dir():
            raise UnknownBundle(f"there is no bundle named {name!r}; {self._listed()}")
        return folder

    def _fetched(self, name: str, *, without_store: bool = False) -> Path | None:
        """Return a copy of a bundle at the URL, or None if there is none of this name."""
        url = f"{self.url}/{self.name(name)}"
        try:
            return self.cache.copy_of(url, without_store=without_store)
        except UnknownBundle:
            return self.started_with if name == self.started_with.name else None
        except Unwritable as error:
            raise StoreError(f"{url} cannot be copied to this machine: {error.cause}") from error

    def _listed(self) -> str:
        named = {self.started_with.name}
        with suppress(OSError, BundleError):  # the folder cannot be listed
            if self.url:
                # Each is asked for, and the last one only to know whether there are more.
                below = sorted(filter(NAME.fullmatch, names_below(self.url)))
                bundles = (name for name in below if exists(f"{self.url}/{name}"))
                named |= set(islice(bundles, NAMED + 1))
            else:
                found = self.folder.glob(f"*/{manifest.FILE_NAME}")
                named |= {path.parent.name for path in found if self._is_bundle(path.parent)}
        names = sorted(filter(NAME.fullmatch, named))
        more = " and more" if len(names) > NAMED else ""
        return f"there are: {', '.join(names[:NAMED])}{more}"

    @staticmethod
    def _is_bundle(folder: Path) -> bool:
        """Whether a folder has a bundle's manifest, and not only a file of this name."""
        with suppress(BundleError):
            return bool(manifest.read(folder))
        return False

    def configured(self) -> str:
        """Return the fingerprint of the bundle that the service was started with."""
        return manifest.fingerprint(manifest.read(self.started_with))

    def reloaded(self, label_log: LabelLog) -> str | None:
        """Return the name of the bundle that was last reloaded, which a restart opens.

        None: there was no reload, or the service is now started with another bundle than then.
        """
        event = label_log.newest(UseBundle.kind)
        if event is None:
            return None
        reload_request = UseBundle.from_event(event)
        return reload_request.bundle if reload_request.configured == self.configured() else None

    def current(self, label_log: LabelLog) -> Path:
        """Return the bundle to open at the start: the last reloaded or the configured one.

        If a store cannot be reached, the copy that was fetched last is returned. Raises
        `BundleError` if the bundle's URL cannot be used.
        """
        name = self.reloaded(label_log)
        if name is None:
            return self.started_with
        with suppress(InvalidInput):  # its folder was replaced by a link that leads outside
            folder = self._fetched(name, without_store=True) if self.url else self.path(name)
            if folder is not None and folder.is_dir():
                return folder
        log.warning(
            "the bundle that was last reloaded is gone; the configured one is served",
            extra={"bundle": name},
        )
        return self.started_with
