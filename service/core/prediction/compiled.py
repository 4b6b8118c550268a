"""Compiled code where the installation built it, and what computes the same where it did not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

Compiled = TypeVar("Compiled")

log = logging.getLogger("keymatch")


def compiled_or(
    load: Callable[[], Compiled], fallback: Compiled, *, slower: str, source: str
) -> Compiled:
    """Return what `load` opens; without a library, or with an old one, `fallback` and a warning.

    `slower` is the warning's clause on what the fallback does, such as "numpy counts the votes";
    `source` is the path of the C file below service/core/prediction.
    """
    try:
        return load()
    except (OSError, AttributeError) as error:
        log.warning(
            f"{slower}, which takes longer; install the package again to compile"
            f" service/core/prediction/{source}",
            extra={"cause": str(error)},
        )
        return fallback
