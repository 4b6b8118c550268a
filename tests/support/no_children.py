"""Replaces child processes in tests, because each start takes a second of CPU time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.encoding.representer import EncodedItem, Representer, open_representer
from service.core.errors import KeymatchError, SealError
from service.core.processes.low_priority import LowPriorityChild
from service.core.replay import texts_of
from service.engine import bundle_admin, encoder_pool
from service.engine.encoder_pool import EncodingChunk
from service.engine.trial import first_answer


class EncoderHere:
    """Encodes like `EncoderProcess`, but in a thread of this process."""

    late = False

    def __init__(self, folder: Path, *, niceness: int, awaited: bool = False) -> None:
        self._folder = folder

    def wait_until_warm(self, *, seconds: float) -> None:
        facts = manifest.read(self._folder)
        encoder = OnnxEncoder(self._folder, facts.encoder)
        if facts.novel is None:
            self._representer = Representer(encoder)
        else:
            self._representer = open_representer(encoder, open_bundle(self._folder, verify=False))

    def encode(self, chunk: EncodingChunk) -> list[EncodedItem]:
        return self._representer.encode([texts_of(item) for item in chunk.items])

    def kill(self) -> None:
        pass

    def close(self) -> None:
        pass


class TrialHere(LowPriorityChild):
    """Tries a bundle in this process, and runs all other commands in a child process."""

    def run(self, command: Sequence[str], **how: Any) -> str:
        if "service.engine.trial" not in command:
            return super().run(command, **how)
        try:
            first_answer(open_bundle(Path(command[-3]), verify=False))
        except KeymatchError as error:
            raise SealError(str(error)) from error
        return ""


@contextmanager
def no_children() -> Iterator[None]:
    """Make services encode and try bundles in this process; not for tests of child processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_pool, "EncoderProcess", EncoderHere)
        patch.setattr(bundle_admin, "LowPriorityChild", TrialHere)
        yield
