"""What tells one checkpoint from another: a digest of its weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

from service.core.bundle import reranker_files
from service.core.files.checksums import file_facts

WEIGHTS = (".safetensors", ".npy", ".bin")  # the suffixes of files that hold numbers
SECOND_RANKING = Path(reranker_files.TREES).parts[0]


def weights_digest(checkpoint: Path) -> str:
    """The SHA-256 over the names and contents of a checkpoint's weight files.

    What is chosen or learned later does not change it: settings such as lambda, and the second
    ranking that `fit` writes beside the weights.
    """
    lines = [
        f"{name} {facts.sha256}"
        for name, facts in file_facts(checkpoint, suffixes=WEIGHTS).items()
        if Path(name).parts[0] != SECOND_RANKING
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
