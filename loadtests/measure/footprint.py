"""Size: resident memory of a process, and bytes on disk for each key of a bundle."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from service.core.bundle.bundle import BASE_SEGMENT, manifest

_FP16_BYTES = 2
_COLUMN_BYTES = 4  # one value of V: the column number of a label


@dataclass(frozen=True, kw_only=True)
class Resident:
    """Megabytes of a process in memory: its private pages, and file pages that processes share."""

    private: float
    shared: float

    @property
    def total(self) -> float:
        """What `ps` calls RSS."""
        return self.private + self.shared

    def as_document(self) -> dict[str, float]:
        """The figures for JSON."""
        return {**asdict(self), "total": self.total}


def resident(pid: int) -> Resident:
    """Memory of a running process, from /proc (Linux only)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)

    def megabytes(name: str) -> float:
        return int(fields[name].split()[0]) / 1000

    return Resident(
        private=megabytes("RssAnon"), shared=megabytes("RssFile") + megabytes("RssShmem")
    )


@dataclass(frozen=True, kw_only=True)
class KeyBytes:
    """Average bytes for each key of index and values, without the key's fp16 vector."""

    keys: int
    index: float
    values: float
    allowed: float

    @property
    def total(self) -> float:
        """Index and values together."""
        return self.index + self.values


def bytes_per_key(bundle: Path, *, allowance: float) -> KeyBytes:
    """Sizes from the bundle's manifest; `allowance` is for everything but 4 bytes a value."""
    facts = manifest.read(bundle)
    keys = facts.memory.instances + facts.memory.labels
    sizes = {name: file.bytes for name, file in facts.files.items()}
    values = sum(size for name, size in sizes.items() if name.startswith("values/"))
    return KeyBytes(
        keys=keys,
        index=sizes[BASE_SEGMENT] / keys - _FP16_BYTES * facts.encoder.dimension,
        values=values / keys,
        allowed=allowance + _COLUMN_BYTES * facts.memory.votes / keys,
    )
