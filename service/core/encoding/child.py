"""`python -m service.core.encoding.child BUNDLE NICENESS [awaited]`: a child that encodes items.

The service encodes single labels itself. What is posted in bulk would keep its interpreter's lock
busy and slow its answers down, so that is encoded in children, which are nicer than the service.

| stream | message, each preceded by its length (4 bytes, little-endian)     |
|--------|-------------------------------------------------------------------|
| stdout | once, empty: the model is loaded and has encoded a text           |
| stdin  | JSON, a list of items, each a list of [role, text]                |
| stdout | the rows of all items in order, fp16 [n, d]                       |
| stdout | JSON, a list of neighbours for each item                          |

The child ends when stdin ends, so also when the service dies.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import IO

LENGTH_BYTES = 4


def main(folder: Path, niceness: int, *, awaited: bool) -> None:
    """Answer messages until stdin ends, at `niceness`.

    A child that is `awaited` takes it only once it is warm: the service is not ready before.
    """
    # A signal to the whole process group must not end the child: the service still waits for
    # items that it has admitted, and closes stdin afterwards.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    if not awaited:
        os.nice(niceness)  # before the imports: they take a second of a core
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
    else:  # the service has verified the bundle already
        representer = open_representer(encoder, open_bundle(folder, verify=False))
    representer.encode([[(Role.LABEL, "warm-up")]])  # first calls allocate memory
    if awaited:
        os.nice(niceness)
    send(sys.stdout.buffer, b"")
    while (message := receive(sys.stdin.buffer)) is not None:
        encoded_items = representer.encode(
            [[(Role(role), text) for role, text in item] for item in orjson.loads(message)]
        )
        send(sys.stdout.buffer, b"".join(encoded.rows.tobytes() for encoded in encoded_items))
        send(sys.stdout.buffer, orjson.dumps([encoded.neighbours for encoded in encoded_items]))


def send(stream: IO[bytes], message: bytes) -> None:
    """Write one message."""
    stream.write(len(message).to_bytes(LENGTH_BYTES, "little") + message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Read one message; return None if the stream ends before the message is complete."""
    head = stream.read(LENGTH_BYTES)
    size = int.from_bytes(head, "little")
    message = stream.read(size) if len(head) == LENGTH_BYTES else b""
    return message if len(head) == LENGTH_BYTES and len(message) == size else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), awaited=sys.argv[3:] == ["awaited"])
