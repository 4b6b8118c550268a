"""A digest of a checkpoint's weights, which identifies it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from service.core.bundle import reranker_files
from service.core.files.folder_facts import file_facts

WEIGHTS = (".safetensors", ".npy", ".bin")  # the suffixes of weight files
RERANKER = Path(reranker_files.TREES).parts[0]


def weights_digest(checkpoint: Path) -> str:
    """Return the SHA-256 over the names and contents of a checkpoint's weight files.

    Choices made later, such as lambda, and the reranker that `fit` adds do not change it.
    """
    lines = [
        f"{name} {facts.sha256}"
        for name, facts in file_facts(checkpoint, suffixes=WEIGHTS).items()
        if Path(name).parts[0] != RERANKER
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
