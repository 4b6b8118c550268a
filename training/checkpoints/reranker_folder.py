"""A learned reranker on disk, as `rerank` writes it and `export bundle` reads it.

It belongs to one checkpoint, which it names by the digest of the weights.

| file            | content                                                              |
|-----------------|----------------------------------------------------------------------|
| `reranker.json` | format, version, digest of the checkpoint, facts of the reranker     |
| `reranker/*`    | the trees and the words, as a bundle has them: `reranker_files`      |
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.bundle import ranges, reranker_files
from service.core.bundle.manifest import RerankerFacts
from service.core.bundle.reranker_files import RerankerFiles
from service.core.config import STRICT
from service.core.errors import BundleAltered, BundleMissing, InvalidInput
from service.core.files.folder_facts import checked, file_facts, read_document
from training.documents import write_json

FORMAT = "keymatch-reranker"
VERSION = 1
FILE = "reranker.json"
WEIGHTS = (".safetensors", ".npy", ".bin")  # the suffixes of weight files
_TREES_FOLDER = Path(reranker_files.TREES).parts[0]


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Description:
    """The content of `reranker.json`."""

    format: ranges.Text
    version: ranges.Count
    weights: ranges.Text  # digest of the checkpoint whose answers the trees learned from
    facts: RerankerFacts


_ADAPTER = TypeAdapter(Description)


def write(files: RerankerFiles, folder: Path, *, weights: str) -> None:
    """Write the description into `folder`, which must already have the reranker's files.

    `weights` is the digest of the checkpoint whose answers the trees learned from.
    """
    description = Description(format=FORMAT, version=VERSION, weights=weights, facts=files.facts)
    write_json(folder / FILE, _ADAPTER.dump_python(description, mode="json"))


def copy(source: Path, folder: Path) -> None:
    """Copy the reranker in `source` to another folder, if there is one."""
    if is_reranker(source):
        reranker_files.write(read(source), folder)
        shutil.copyfile(source / FILE, folder / FILE)


def is_reranker(folder: Path) -> bool:
    """Whether a folder holds a reranker."""
    return (folder / FILE).is_file()


def read(folder: Path, *, weights: str | None = None) -> RerankerFiles:
    """Read a reranker; `weights` is the digest of the checkpoint that it must belong to.

    Raises `InvalidInput` if it was learned from another checkpoint's answers. Raises, naming the
    file, `BundleMissing`, `BundleUnsupported` (another format or version) or `BundleAltered`.
    """
    path = folder / FILE
    if not path.is_file():
        raise BundleMissing(
            f"{path} is missing: no reranker was written there (`keymatch lab rerank`"
            " writes none where the memory's own order is better)"
        )
    document = read_document(path, format_name=FORMAT, version=VERSION)
    description = checked(_ADAPTER, document, path=path)
    if weights not in (None, description.weights):
        raise InvalidInput(
            f"the reranker in {folder} was learned from the answers of another checkpoint:"
            " give the one that `keymatch lab rerank` learned for this encoder's run"
        )
    files = reranker_files.read(folder, description.facts)
    if reranker_files.with_fingerprint(files).facts != files.facts:
        raise BundleAltered(f"{folder}: trees or words are not those of {FILE}")
    return files


def weights_digest(checkpoint: Path) -> str:
    """Return the SHA-256 over the names and contents of a checkpoint's weight files.

    Choices made later, such as lambda, and the reranker that `fit` adds do not change it.
    """
    lines = [
        f"{name} {facts.sha256}"
        for name, facts in file_facts(checkpoint, suffixes=WEIGHTS).items()
        if Path(name).parts[0] != _TREES_FOLDER
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
