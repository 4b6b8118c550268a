"""Bundles in object stores: `s3://BUCKET/PATH/NAME`, `gs://...` or `file:///...`, through fsspec.

A bundle in a store has the same files as in a folder. `BundleCache` keeps copies in a folder:

    DIGEST/NAME       a copy; DIGEST is the fingerprint of its manifest
    urls/HASH         a link to the copy that was last fetched from the URL with this SHA-256
    snapshots/NAME    a snapshot that is being written or pushed

The manifest of a URL says which copy is current, and the checksums in it are compared while its
files arrive. So a copy that is there needs one request. A manifest is pushed after all other files,
because a bundle without one does not exist for a reader.

Credentials are those that s3fs and gcsfs find in the environment. Messages never repeat a store's
own texts, which may quote a request, but only its error codes.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Event
from time import monotonic, time
from typing import Any

from service.core.bundle import manifest
from service.core.bundle.manifest import Manifest
from service.core.errors import (
    BundleAltered,
    BundleError,
    BundleMissing,
    InvalidConfig,
    KeymatchError,
    MissingExtra,
    StoreError,
    StoreUnreachable,
    UnknownBundle,
    Unwritable,
    echoed,
)
from service.core.files.atomic import new_folder
from service.core.files.folder_facts import MOST_BYTES, FileFacts, verify_files

SCHEMES = {"s3": "s3fs", "gs": "gcsfs", "file": "fsspec"}  # and the package that each needs
FORM = re.compile(r"(?:(?:s3|gs)://[A-Za-z0-9][A-Za-z0-9._-]*|file://)(?:/[^/?#*\[\]\\\s]+)*")
UNUSED_SECONDS = 86_400  # copies that were asked for later are kept
CHUNK_BYTES = 16 * 1024**2  # of one request
PARALLEL = 4  # files that are transferred at once
# Errors of aiohttp, botocore and http.client for a body with fewer bytes than were announced. Some
# have a `code` of 400, which no store has sent.
CUT_SHORT = (
    "ClientPayloadError", "ContentLengthError", "TransferEncodingError", "IncompleteRead",
    "IncompleteReadError", "ResponseStreamingError",
)  # fmt: skip
_DIGEST = re.compile(r"[0-9a-f]{64}")

log = logging.getLogger("keymatch")


def is_url(place: Path | str) -> bool:
    """Whether `place` is a URL, not a folder."""
    return "://" in str(place)


def checked_url(place: str) -> str:
    """Return the URL without `/` at its end, once its scheme's packages can be imported.

    Raises `InvalidConfig` or `MissingExtra`.
    """
    scheme, _, path = place.partition("://")
    url = f"{scheme}://{path.rstrip('/')}"
    if scheme not in SCHEMES:
        raise InvalidConfig(f"{echoed(scheme + '://')} is no object store: use s3, gs or file")
    if not path or not FORM.fullmatch(url) or {".", ".."} & set(path.split("/")):
        raise InvalidConfig(  # the URL itself may hold a password, so it is not repeated
            f"the {scheme} URL of a bundle must be s3://BUCKET/PATH, gs://BUCKET/PATH or"
            " file:///PATH, without credentials, parameters and wildcards"
        )
    _import(scheme)
    return url


def parent_of(url: str) -> str:
    """Return the URL that contains this one."""
    return url.rstrip("/").rpartition("/")[0]


def local_bundle(place: Path | str, cache: Path, *, without_store: bool = False) -> Path:
    """Return the folder of a bundle: `place` itself, or the copy of a URL's bundle in `cache`.

    Raises as `checked_url` and `BundleCache.copy_of`.
    """
    if not is_url(place):
        return Path(place)
    url = checked_url(str(place))
    return BundleCache(cache).copy_of(url, without_store=without_store)


def push(folder: Path, url: str, *, goes_on: Callable[[], object] = lambda: None) -> None:
    """Copy a bundle's folder to `url`, its manifest last.

    `goes_on` is called before each file, and may raise to end it. Raises `BundleError`.
    """
    store, facts = _open(url), manifest.read(folder)
    for name in facts.files:
        goes_on()
        with _explained(f"{url}/{name}"):
            store.put_file(str(folder / name), f"{url}/{name}")
    goes_on()
    name = f"{url}/{manifest.FILE_NAME}"
    # An object appears complete, but a reader could see half of a file.
    partial = f"{name}.partial" if url.startswith("file://") else name
    with _explained(name):
        store.put_file(str(folder / manifest.FILE_NAME), partial)
        if partial != name:
            store.mv(partial, name)


def exists(url: str) -> bool:
    """Whether there is a bundle at `url`; raises `StoreError`."""
    with suppress(UnknownBundle):
        return bool(_read_manifest(url))
    return False


def names_below(url: str) -> list[str]:
    """Return the names of folders at `url`; raises `StoreError` or `BundleMissing`."""
    with _explained(url):
        listed: list[dict[str, Any]] = _open(url).ls(url, detail=True)
    return [PurePosixPath(one["name"]).name for one in listed if one["type"] == "directory"]


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Prevent the removal of a copy while the block runs."""
    descriptor = hold(folder)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def hold(folder: Path) -> int | None:
    """Prevent the removal of a copy until the returned descriptor is closed; None: no folder."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # file systems without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor
    return None


@dataclass(frozen=True)
class BundleCache:
    """The folder in which copies of bundles are kept; processes of one machine may share it."""

    place: Path  # may begin with `~`, which needs a home only once the cache is used

    @property
    def folder(self) -> Path:
        """The folder's absolute path; raises `InvalidConfig` if there is no home for a `~`."""
        try:
            return self.place.expanduser().absolute()
        except RuntimeError as error:
            raise InvalidConfig(f"--cache {self.place}: there is no home folder") from error

    @property
    def snapshots(self) -> Path:
        """The folder of snapshots that are not pushed yet."""
        return self.folder / "snapshots"

    def copy_of(self, url: str, *, without_store: bool = False) -> Path:
        """Return the folder with the present content of `url`; its name is the URL's last part.

        The first call downloads it, while other processes wait. If the store cannot be reached, and
        `without_store` allows it, the copy that was fetched last from this URL is returned. Raises
        `BundleError`, `Unwritable` or `MissingExtra`.
        """
        try:
            content, facts = _read_manifest(url)
        except StoreUnreachable as error:
            kept = self.folder / "urls" / _hash(url)
            if not without_store or not kept.is_dir():
                raise
            extra = {"bundle": url, "cause": str(error)}
            log.warning("the object store cannot be reached; its last copy is used", extra=extra)
            return kept.resolve()
        copy = self.folder / manifest.fingerprint(facts) / PurePosixPath(url).name
        if not _usable(copy, facts):
            with self._only_one():
                if not _usable(copy, facts):
                    shutil.rmtree(copy, ignore_errors=True)
                    self._fetch(url, facts, content, copy)
                self._remove_unused(copy)
        self._note(url, copy)
        return copy

    def keep(self, snapshot: Path, url: str) -> None:
        """Move a snapshot that was pushed to `url` to where `copy_of` finds it."""
        copy = self.folder / manifest.fingerprint(manifest.read(snapshot)) / snapshot.name
        with self._only_one(), suppress(OSError):  # otherwise it is downloaded again
            copy.parent.mkdir(exist_ok=True)
            snapshot.rename(copy)
            self._remove_unused(copy)
        self._note(url, copy)

    def _fetch(self, url: str, facts: Manifest, content: bytes, copy: Path) -> None:
        started, store = monotonic(), _open(url)
        with new_folder(copy) as partial:
            ended = Event()

            def fetch(name: str) -> None:
                target = partial / name
                target.parent.mkdir(parents=True, exist_ok=True)
                _download(store, f"{url}/{name}", facts.files[name], target, ended)

            with ThreadPoolExecutor(PARALLEL) as pool:
                try:
                    for _ in pool.map(fetch, facts.files):
                        pass
                finally:
                    ended.set()
                    pool.shutdown(wait=False, cancel_futures=True)
            (partial / manifest.FILE_NAME).write_bytes(content)
        size = sum(file.bytes for file in facts.files.values())
        seconds = round(monotonic() - started, 2)
        log.info("bundle fetched", extra={"bundle": url, "bytes": size, "seconds": seconds})

    def _note(self, url: str, copy: Path) -> None:
        """Link the URL to its copy, for starts without the store."""
        link = self.folder / "urls" / _hash(url)
        target = os.path.relpath(copy, link.parent)
        with suppress(OSError):  # a cache that is filled elsewhere may be read-only
            if link.is_symlink() and os.readlink(link) == target:
                return
            link.parent.mkdir(exist_ok=True)
            new = link.with_name(f".{link.name}.{os.getpid()}")
            new.symlink_to(target)
            new.replace(link)

    def _remove_unused(self, newest: Path) -> None:
        """Remove copies that no process holds and that nobody has asked for within a day."""
        for copy in self.folder.glob("*/*"):
            if copy == newest or not _DIGEST.fullmatch(copy.parent.name):
                continue
            with suppress(OSError):
                descriptor = os.open(copy, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if time() - copy.stat().st_mtime > UNUSED_SECONDS:
                        shutil.rmtree(copy)
                        copy.parent.rmdir()
                finally:
                    os.close(descriptor)

    @contextmanager
    def _only_one(self) -> Iterator[None]:
        """Wait until no other process fetches into this cache or removes from it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise Unwritable(self.folder, error.strerror or str(error)) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            for partial in self.folder.glob("*/.*.partial-*"):  # a killed process left it behind
                shutil.rmtree(partial, ignore_errors=True)
            yield
        finally:
            os.close(descriptor)


def _usable(copy: Path, facts: Manifest) -> bool:
    """Whether the copy is there and unaltered; a day begins in which it is kept."""
    with held(copy):
        with suppress(OSError):
            os.utime(copy)
        try:
            verify_files(copy, facts.files)
            return manifest.read(copy) == facts
        except BundleError:
            return False


def _read_manifest(url: str) -> tuple[bytes, Manifest]:
    """Return the manifest at `url` as bytes and as facts.

    Raises `UnknownBundle` if there is none, `StoreError`, `BundleAltered` or `BundleUnsupported`.
    """
    place = f"{url}/{manifest.FILE_NAME}"
    try:
        with _explained(place):
            content: bytes = _open(url).cat_file(place, start=0, end=MOST_BYTES + 1)
    except BundleMissing as error:
        raise UnknownBundle(f"{place} is missing: {url} is not a bundle") from error
    return content, manifest.parse(content, place=place)


def _download(store: Any, url: str, facts: FileFacts, target: Path, ended: Event) -> None:
    """Write a file, and compare it with its facts; stops once `ended` is set."""
    received, digest = 0, hashlib.sha256()
    with target.open("wb") as file:
        while received < facts.bytes and not ended.is_set():
            end = min(received + CHUNK_BYTES, facts.bytes)
            with _explained(url):
                content: bytes = store.cat_file(url, start=received, end=end)
            file.write(content)
            digest.update(content)
            received += len(content)
            if received < end:
                raise BundleAltered(f"{url} has {received} bytes instead of {facts.bytes}")
    if digest.hexdigest() != facts.sha256 and not ended.is_set():
        raise BundleAltered(f"{url} differs from its recorded SHA-256")


def _open(url: str) -> Any:
    """Return fsspec's file system for a URL; raises `MissingExtra`."""
    scheme = url.partition("://")[0]
    options = {"auto_mkdir": True} if scheme == "file" else {}
    with _explained(url):
        return _import(scheme)(use_listings_cache=False, **options)


def _import(scheme: str) -> Any:
    """Return fsspec's class of file systems for a scheme; raises `MissingExtra`."""
    package = SCHEMES[scheme]
    try:
        import fsspec  # only with a URL
    except ImportError as error:
        raise MissingExtra("fsspec", extra="objects") from error
    logger = logging.getLogger(package)
    if logger.level == logging.NOTSET:  # it logs stack traces of errors that are raised, too
        logger.setLevel(logging.CRITICAL)
    try:
        return fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise MissingExtra(package, extra="objects") from error


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Raise errors of fsspec's packages, which have no common base, as `BundleError`."""
    try:
        yield
    except KeymatchError:
        raise
    except Exception as error:
        raise _explanation(error, url) from error


def _explanation(error: Exception, url: str) -> BundleError:
    if any(type(one).__name__ in CUT_SHORT for one in _chain(error)):
        return StoreUnreachable(
            f"{url}: the answer of the object store ends early each time; look at proxies before it"
        )
    code = _code(error)
    if code == "NoSuchBucket":
        return StoreError(f"{url}: there is no such bucket")
    if code == "InvalidRange":
        return BundleAltered(f"{url} has fewer bytes than are recorded")
    if isinstance(error, FileNotFoundError):
        return BundleMissing(f"{url} is missing")
    forbidden = isinstance(error, OSError) and str(error).startswith("Forbidden")  # gcsfs
    if isinstance(error, PermissionError) or forbidden or code in ("401", "403"):
        return StoreError(f"{url}: the object store denies access ({code}): check credentials")
    if "Credential" in code:
        return StoreError(f"{url}: there are no usable credentials for it ({code})")
    if isinstance(error, ValueError):
        return StoreError(f"{url}: the object store refuses the request ({code})")
    return StoreUnreachable(f"{url}: the object store cannot be reached ({code})")


def _code(error: BaseException) -> str:
    """Return the code that a store gave, or the name of the error's class."""
    for cause in _chain(error):
        response = getattr(cause, "response", None)
        given = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
        given = given or getattr(cause, "code", None)
        if isinstance(given, str | int):
            return re.sub(r"[^A-Za-z0-9_.-]", "", str(given))[:60]
    return type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _hash(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()
