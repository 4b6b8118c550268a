"""The bundle's manifest: what the bundle holds, and the checksums that hold it together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.config import STRICT
from service.core.encoding.irene import Refinement
from service.core.errors import BundleAltered, BundleMissing
from service.core.files.versioned_json import checked, read_document
from service.core.index.libraries import IndexParameters

FORMAT = "keymatch-bundle"
VERSION = 1
FILE_NAME = "manifest.json"


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class EncoderFacts:
    """The encoder: where it came from and how it is called.

    `fingerprint` is the SHA-256 over graph and tokenizer. `batch_invariant` is false where a
    text's vector would depend on its neighbours in a batch by more than the last bits (dynamic
    int8: one activation scale spans the whole batch); such an encoder never runs batches.
    """

    name: str
    fingerprint: str
    dimension: int
    max_tokens: int
    quantization: str
    batch_invariant: bool
    query_prompt: str = ""
    label_prompt: str = ""


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class MemoryFacts:
    """Sizes: N instances, L labels, and the votes in V's instance rows.

    `version` is the last event of the label log that a snapshot holds, 0 for an export.
    """

    instances: int
    labels: int
    votes: int
    version: int


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class IndexFacts:
    """The index library and its parameters, see `IndexParameters`."""

    library: str
    m: int
    ef_construction: int
    ef: int

    def parameters(self) -> IndexParameters:
        """The same as the index adapter wants them."""
        return IndexParameters(**asdict(self))


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class PredictorFacts:
    """Temperature tau and the defaults of b (`depth`) and lambda (`memorization`)."""

    tau: float
    depth: int
    memorization: float


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class NovelFacts:
    """How novel labels are represented: by which combiner, and with which numbers.

    `fingerprint` is the SHA-256 over these numbers, the combiner and the classifiers.
    """

    combiner: str
    refinement: Refinement
    fingerprint: str


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class FileFacts:
    """Size and SHA-256 of one file."""

    bytes: int
    sha256: str


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Manifest:
    """Everything `manifest.json` says, but for its own checksum."""

    format: str
    version: int
    name: str
    created: str
    dataset: str
    encoder: EncoderFacts
    memory: MemoryFacts
    index: IndexFacts
    predictor: PredictorFacts
    metrics: dict[str, float]
    libraries: dict[str, str]
    files: dict[str, FileFacts]
    log: str  # id of the label log that a snapshot was taken from, "" for an exported bundle
    novel: NovelFacts | None = None  # without it, a novel label is its text


_ADAPTER = TypeAdapter(Manifest)


@dataclass(frozen=True, kw_only=True)
class Checksums:
    """Checks files against the manifest's facts, several at once."""

    folder: Path
    files: Mapping[str, FileFacts] = field(default_factory=dict)

    def verify(self) -> None:
        """Raise `BundleMissing` or `BundleAltered` for the first file that is not as written."""
        for name, facts in self.files.items():
            path = self.folder / name
            if not path.is_file():
                raise BundleMissing(f"{path} is missing")
            size = path.stat().st_size
            if size != facts.bytes:
                raise BundleAltered(f"{path} has {size} bytes; the manifest says {facts.bytes}")
        for name, digest in digests(self.folder, self.files).items():
            if digest != self.files[name].sha256:
                raise BundleAltered(f"{self.folder / name} differs from the manifest's SHA-256")


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of files below `folder`; hashing releases the interpreter lock, so in threads."""

    def digest(name: str) -> tuple[str, str]:
        try:
            with (folder / name).open("rb") as file:
                return name, hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise BundleMissing(f"{folder / name} cannot be read: {error.strerror}") from error

    with ThreadPoolExecutor() as pool:
        return dict(pool.map(digest, names))


def file_facts(folder: Path) -> dict[str, FileFacts]:
    """Size and checksum of every file below `folder`."""
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        name: FileFacts(bytes=(folder / name).stat().st_size, sha256=digest)
        for name, digest in digests(folder, names).items()
    }


def write(manifest: Manifest, folder: Path) -> None:
    """Write `manifest.json` with the checksum of its own content."""
    content = as_document(manifest)
    document = {"sha256": _own_digest(content), **content}
    (folder / FILE_NAME).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def read(folder: Path) -> Manifest:
    """Read and check `manifest.json`.

    Raises `BundleMissing`, `BundleUnsupported` (another format or version) or `BundleAltered`.
    """
    path = folder / FILE_NAME
    if not path.exists():
        raise BundleMissing(f"{path} is missing: {folder} is not a bundle")
    content = read_document(path, format_name=FORMAT, version=VERSION)
    if content.pop("sha256", None) != _own_digest(content):
        raise BundleAltered(f"{path} differs from its own checksum")
    return checked(_ADAPTER, content, path=path)


def as_document(manifest: Manifest) -> dict[str, Any]:
    """The manifest as plain JSON values; facts that are None are left out."""
    document: dict[str, Any] = _ADAPTER.dump_python(manifest, mode="json", exclude_none=True)
    return document


def fingerprint(manifest: Manifest) -> str:
    """SHA-256 over all that the manifest says, every file's checksum included."""
    return _own_digest(as_document(manifest))


def _own_digest(content: Mapping[str, Any]) -> str:
    canonical = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()
