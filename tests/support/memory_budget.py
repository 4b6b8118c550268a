"""What a deployed service with the demo's bundle may use of its memory."""

from types import SimpleNamespace
from typing import cast

from service.core.bundle.manifest import Manifest, MemoryFacts
from service.server.memory_budget import shares, within_budget
from service.settings import Settings


def bytes_of(quantity: str) -> int:
    """Convert a Kubernetes quantity, such as 2Gi, to bytes."""
    return int(quantity[:-2]) * {"Mi": 1024**2, "Gi": 1024**3}[quantity[-2:]]


def budget(settings: Settings) -> tuple[Settings, int]:
    """Return the demo bundle's settings with a live-memory limit, and the bytes of all parts."""
    sizes = {"encoder.onnx": 23_000_000, "keys and segments": 245_000_000}
    files = {name: SimpleNamespace(bytes=size) for name, size in sizes.items()}
    memory = MemoryFacts(instances=24_237, labels=102_428, votes=2_020_781, version=0)
    encoder = SimpleNamespace(dimension=384)
    bundle = cast(Manifest, SimpleNamespace(files=files, encoder=encoder, memory=memory))
    decided = within_budget(settings, bundle)
    return decided, sum(share.size for share in shares(decided, bundle))
