"""What the crash tests measure."""

from dataclasses import dataclass, field
from statistics import median, quantiles


@dataclass
class Figures:
    """Counts of kills and acknowledged writes, and seconds.

    `ready` are those until a started process is ready, `visible` those until another process shows
    a write, by kind of log.
    """

    ready: list[float] = field(default_factory=list)
    visible: dict[str, list[float]] = field(default_factory=dict)
    seed: str = ""
    kills: int = 0
    writes: int = 0

    def lines(self) -> list[str]:
        """The figures as sentences."""
        lines = []
        if self.ready:
            lines.append(
                f"crash tests {self.seed}: {self.kills} processes killed,"
                f" {self.writes} writes acknowledged;"
                f" started to ready: median {median(self.ready):.2f} s,"
                f" most {max(self.ready):.2f} s of {len(self.ready)}"
            )
        for log, seconds in self.visible.items():
            lines.append(
                f"visible in another process, {log}: median {1000 * median(seconds):.1f} ms,"
                f" p99 {1000 * quantiles(seconds, n=100)[98]:.1f} ms of {len(seconds)} writes"
            )
        return lines


FIGURES = Figures()
