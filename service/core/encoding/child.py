"""`python -m service.core.encoding.child BUNDLE`: the child process that encodes what is learned.

A thread for it inside the service shares the interpreter's lock with those that answer: at equal
priority it takes their time, and at a lower one it is put aside while it holds the lock, and they
with it. A process of lowest priority does neither.

| stream | message, each behind its length (4 bytes, little-endian)          |
|--------|-------------------------------------------------------------------|
| stdin  | JSON, a list of items, each a list of [role, text]                |
| stdout | the rows of all items in fp16 [n, d], one after the other         |
| stdout | JSON, a list of neighbours for each item                          |

The end of stdin, also by the service's death, ends the child.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import IO

from service.core.processes.low_priority import step_aside

LENGTH_BYTES = 4


def main(folder: Path) -> None:
    """Encode one message after the other."""
    # What was admitted is still encoded; the service ends its children by itself.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    step_aside()  # before the imports: they take a second of a core while the service starts
    import orjson

    from service.core.bundle import manifest
    from service.core.bundle.bundle import open_bundle
    from service.core.encoding.encoder import OnnxEncoder
    from service.core.encoding.representer import Representer, open_representer
    from service.core.types import Role

    facts = manifest.read(folder)
    encoder = OnnxEncoder(folder, facts.encoder)
    if facts.novel is None:
        representer = Representer(encoder)
    else:  # the service has verified what it serves
        representer = open_representer(encoder, open_bundle(folder, verify=False))
    while (message := receive(sys.stdin.buffer)) is not None:
        made = representer.make(
            [[(Role(role), text) for role, text in item] for item in orjson.loads(message)]
        )
        send(sys.stdout.buffer, b"".join(own.rows.tobytes() for own in made))
        send(sys.stdout.buffer, orjson.dumps([own.neighbours for own in made]))


def send(stream: IO[bytes], message: bytes) -> None:
    """Write one message."""
    stream.write(len(message).to_bytes(LENGTH_BYTES, "little") + message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Read one message; None at the end of the stream, also within a message."""
    head = stream.read(LENGTH_BYTES)
    size = int.from_bytes(head, "little")
    message = stream.read(size) if len(head) == LENGTH_BYTES else b""
    return message if len(head) == LENGTH_BYTES and len(message) == size else None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
