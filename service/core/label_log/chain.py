"""The chain of a log: each event carries a hash over itself and all events before it.

A checksum tells that one event is whole. The chain tells that a log is still the same log: an older
copy, a lost end, or an event that was written anew has another hash at the same number.

    chain(0) = BLAKE2b(id of the log)
    chain(n) = BLAKE2b(chain(n - 1), sequence, kind, body, vectors, encoder)
"""

from __future__ import annotations

from hashlib import blake2b

CHAIN_BYTES = 16


def first_chain(log_id: str) -> bytes:
    """Return the chain of an empty log."""
    return blake2b(log_id.encode(), digest_size=CHAIN_BYTES).digest()


def next_chain(
    before: bytes, *, sequence: int, kind: str, body: bytes, vectors: bytes, encoder: str
) -> bytes:
    """Return the chain of the event that follows the one with the chain `before`."""
    content = b"%b%d\0%b\0%b\0%b\0%b" % (
        before, sequence, kind.encode(), body, vectors, encoder.encode()
    )  # fmt: skip
    return blake2b(content, digest_size=CHAIN_BYTES).digest()
