"""`python -m service.engine.trial BUNDLE NICENESS SECONDS`: a child that tries a verified bundle.

A bundle's graph may never end or take all memory, and no thread of the service could be stopped. So
a reload first tries the bundle in a child process with limited time, and limited memory in addition
to its libraries (`most_bytes`). If the machine runs out of memory, the kernel kills the child
before any other process.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.core.bundle.bundle import Bundle
    from service.core.bundle.manifest import Manifest
    from service.core.types import Prediction

SPARE_BYTES = 1024**3
TIMES_FILES = 4  # a graph is read, copied into tensors, and packed for the CPU
_KILLED_FIRST = "1000"  # the highest `oom_score_adj`
_STATUS, _SIZE = Path("/proc/self/status"), "VmData:"


def most_bytes(facts: Manifest) -> int:
    """Return the bytes that a child may allocate: a GiB plus `TIMES_FILES` times the files."""
    return SPARE_BYTES + TIMES_FILES * sum(file.bytes for file in facts.files.values())


def first_answer(bundle: Bundle) -> Prediction:
    """Answer a query and compute a label's key, using all models of the bundle.

    Raises `BundleAltered` or `BundleUnsupported` if a step fails or a number is not finite.
    """
    from service.core.errors import BundleUnsupported, KeymatchError

    try:
        return _first_answer(bundle)
    except KeymatchError:
        raise
    except Exception as error:  # the libraries' errors have no common base class
        raise BundleUnsupported(f"{bundle.folder} cannot answer a query: {error!r}") from error


def _first_answer(bundle: Bundle) -> Prediction:
    import numpy as np

    from service.core.encoding.encoder import OnnxEncoder, require_full_length
    from service.core.encoding.representer import open_representer
    from service.core.errors import BundleUnsupported
    from service.core.memory.knowledge_memory import KnowledgeMemory
    from service.core.options import complete_options
    from service.core.prediction.predictor import Predictor
    from service.core.types import Role

    facts = bundle.manifest
    encoder = OnnxEncoder(bundle.folder, facts.encoder)
    require_full_length(bundle, encoder)
    predictor = Predictor.of(bundle, encoder)
    text = bundle.label_texts[0] if bundle.labels else "warm-up"
    options = complete_options(facts, top_k=1)
    [prediction] = predictor.predict(KnowledgeMemory(bundle).view, [text], options).predictions
    label = [(Role.LABEL, text), (Role.QUERY, text)]
    [represented] = open_representer(encoder, bundle).encode([label])
    scores = [keyword.score for keyword in prediction.keywords]
    if not (np.isfinite(scores).all() and np.isfinite(represented.rows).all()):
        raise BundleUnsupported(f"{bundle.folder} gives scores or vectors that are not finite")
    return prediction


def main(folder: Path, niceness: int, seconds: int) -> int:
    """Answer a query within `seconds` at `niceness`; returns the exit status."""
    os.nice(niceness)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)  # kills this process, even if its parent has died
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_KILLED_FIRST)
    from service.core.bundle import manifest
    from service.core.bundle.bundle import open_bundle
    from service.core.errors import KeymatchError
    from service.engine import loaded_bundle  # loads all libraries  # noqa: F401

    try:
        _limit_memory(most_bytes(manifest.read(folder)))
        first_answer(open_bundle(folder, verify=False))
    except KeymatchError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _limit_memory(most: int) -> None:
    """Let this process allocate at most `most` further bytes; mapped files do not count.

    There is no limit if the system does not report the memory in use.
    """
    with suppress(OSError):
        lines = _STATUS.read_text().splitlines()
        taken = next((int(line.split()[1]) * 1024 for line in lines if line.startswith(_SIZE)), 0)
        if taken:
            resource.setrlimit(resource.RLIMIT_DATA, (taken + most, taken + most))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
