"""`python -m service.core.encoding.child BUNDLE`: a child process that encodes new items.

Encoding in a thread of the service would slow its answers down, because all threads share the
interpreter's lock. At equal priority the thread takes their processor time; at lower priority it
may be suspended while it holds the lock. A process of lowest priority avoids both.

| stream | message, each preceded by its length (4 bytes, little-endian)     |
|--------|-------------------------------------------------------------------|
| stdin  | JSON, a list of items, each a list of [role, text]                |
| stdout | the rows of all items in order, fp16 [n, d]                       |
| stdout | JSON, a list of neighbours for each item                          |

The child ends when stdin ends, so also when the service dies.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import IO

from service.core.processes.low_priority import lower_priority

LENGTH_BYTES = 4


def main(folder: Path) -> None:
    """Answer messages until stdin ends."""
    # A signal to the whole process group must not end the child: the service still waits for
    # items that it has admitted, and closes stdin afterwards.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    lower_priority()  # before the imports: they take a second of a core while the service starts
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
    main(Path(sys.argv[1]))
