"""Optional dependencies: a command that lacks one says which extra installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from service.core.errors import MissingExtra


@contextmanager
def from_extra(extra: str) -> Iterator[None]:
    """Raise `MissingExtra` naming `extra` if an import in the block fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra=extra) from error
