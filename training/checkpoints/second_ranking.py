"""A learned second ranking on disk, as `rerank` writes it and `export bundle` reads it.

| file            | content                                                              |
|-----------------|----------------------------------------------------------------------|
| `reranker.json` | format, version, the checkpoint, the facts of the second ranking     |
| `reranker/*`    | the trees and the words, as a bundle has them: `reranker_files`      |
"""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.bundle import reranker_files
from service.core.bundle.manifest import RerankerFacts
from service.core.bundle.reranker_files import RerankerFiles
from service.core.config import STRICT
from service.core.errors import BundleAltered, BundleMissing, InvalidInput
from service.core.files.atomic import write_file
from service.core.files.versioned_json import checked, read_document

FORMAT = "keymatch-reranker"
VERSION = 2  # since 2 it names the checkpoint
FILE = "reranker.json"


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Description:
    """The content of `reranker.json`.

    `weights` is the digest of the checkpoint from whose answers the trees learned.
    """

    format: str
    version: int
    weights: str
    facts: RerankerFacts


_ADAPTER = TypeAdapter(Description)


def write(files: RerankerFiles, folder: Path, *, weights: str) -> None:
    """Write the description beside files that lie below `folder` already.

    `weights` is the digest of the checkpoint from whose answers the trees learned.
    """
    description = Description(format=FORMAT, version=VERSION, weights=weights, facts=files.facts)
    document = _ADAPTER.dump_python(description, mode="json")
    write_file(folder / FILE, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def copy(source: Path, folder: Path) -> None:
    """Copy the second ranking in `source` to another folder, if there is one."""
    if is_second_ranking(source):
        reranker_files.write(read(source), folder)
        shutil.copyfile(source / FILE, folder / FILE)


def is_second_ranking(folder: Path) -> bool:
    """Whether a folder holds a second ranking."""
    return (folder / FILE).is_file()


def read(folder: Path, *, weights: str | None = None) -> RerankerFiles:
    """Read a second ranking; `weights` is the digest of the checkpoint that it is to belong to.

    Raises `InvalidInput` where it was learned from another checkpoint's answers, and
    `BundleMissing`, `BundleUnsupported` (another format or version) or `BundleAltered`, naming the
    file.
    """
    description = _description(folder)
    if weights not in (None, description.weights):
        raise InvalidInput(
            f"the second ranking in {folder} was learned from the answers of another checkpoint:"
            " give the one that `python -m training rerank` learned for this encoder's run"
        )
    files = reranker_files.read(folder, description.facts)
    if reranker_files.with_fingerprint(files).facts != files.facts:
        raise BundleAltered(f"{folder}: trees or words are not those of {FILE}")
    return files


def _description(folder: Path) -> Description:
    """The content of `reranker.json`; raises as `read`."""
    path = folder / FILE
    if not path.is_file():
        raise BundleMissing(
            f"{path} is missing: no second ranking was written there (`python -m training rerank`"
            " writes none where the memory's own order is better)"
        )
    document = read_document(path, format_name=FORMAT, version=VERSION)
    return checked(_ADAPTER, document, path=path)
