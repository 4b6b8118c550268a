"""`python -m service.core.encoding.child BUNDLE NICENESS [awaited]`: a child that encodes items.

The service encodes single labels itself. Encoding bulk posts would hold its interpreter lock and
slow its answers down, so child processes of lower priority do that.

| stream | message, each preceded by its length (4 bytes, little-endian)     |
|--------|-------------------------------------------------------------------|
| stdout | once, empty: the model is loaded and has encoded a text           |
| stdin  | JSON, a list of items, each a list of [role, text]                |
| stdout | the rows of all items in order, fp16 [n, d]                       |
| stdout | JSON, a list of neighbours for each item                          |

The child ends when stdin ends, so it also ends when the service dies.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import IO

from service.core.processes.low_priority import wake_when_orphaned

LENGTH_BYTES = 4


def main(folder: Path, niceness: int, *, awaited: bool) -> None:
    """Answer messages until stdin ends, at `niceness`.

    An `awaited` child lowers its priority only once it is warm, as the service waits for that.
    """
    wake_when_orphaned()
    # A signal to the whole process group must not end the child: the service still waits for
    # accepted items, and closes stdin when they are done.
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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
    representer = (
        Representer(encoder)
        if facts.novel is None
        else open_representer(encoder, open_bundle(folder, verify=False))  # the service verified it
    )
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
