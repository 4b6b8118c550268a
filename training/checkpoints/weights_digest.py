"""What tells one checkpoint from another: a digest of its weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

from service.core.files.checksums import file_facts

WEIGHTS = (".safetensors", ".npy", ".bin")  # the suffixes of files that hold numbers


def weights_digest(checkpoint: Path) -> str:
    """The SHA-256 over the names and contents of a checkpoint's weight files.

    Settings that are chosen later, such as lambda, do not change it.
    """
    lines = [
        f"{name} {facts.sha256}" for name, facts in file_facts(checkpoint, suffixes=WEIGHTS).items()
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
