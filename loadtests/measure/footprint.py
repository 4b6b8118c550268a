"""What serving takes: resident memory of the process, bytes a key on disk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from service.core.bundle.bundle import BASE_SEGMENT, manifest

_FP16_BYTES = 2
_LABEL_BYTES = 4  # a column number of V


@dataclass(frozen=True, kw_only=True)
class Resident:
    """Megabytes of a process in memory: its own, and file pages that processes share."""

    own: float
    shared: float

    @property
    def total(self) -> float:
        """What `ps` calls RSS."""
        return self.own + self.shared

    def as_document(self) -> dict[str, float]:
        """For JSON."""
        return {**asdict(self), "total": self.total}


def resident(pid: int) -> Resident:
    """Read /proc (Linux only)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)

    def megabytes(name: str) -> float:
        return int(fields[name].split()[0]) / 1000

    return Resident(own=megabytes("RssAnon"), shared=megabytes("RssFile") + megabytes("RssShmem"))


@dataclass(frozen=True, kw_only=True)
class KeyBytes:
    """Bytes a key of index and values together, beyond the key's own fp16 vector."""

    keys: int
    index: float
    values: float
    allowed: float

    @property
    def total(self) -> float:
        """Index and values."""
        return self.index + self.values


def bytes_a_key(bundle: Path, *, allowance: float) -> KeyBytes:
    """From the manifest's file sizes; `allowance` is for all but 4 bytes a value."""
    facts = manifest.read(bundle)
    keys = facts.memory.instances + facts.memory.labels
    sizes = {name: file.bytes for name, file in facts.files.items()}
    values = sum(size for name, size in sizes.items() if name.startswith("values/"))
    return KeyBytes(
        keys=keys,
        index=sizes[BASE_SEGMENT] / keys - _FP16_BYTES * facts.encoder.dimension,
        values=values / keys,
        allowed=allowance + _LABEL_BYTES * facts.memory.votes / keys,
    )
