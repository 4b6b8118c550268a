"""What crash tests measure on the way."""

from dataclasses import dataclass, field
from statistics import median, quantiles


@dataclass
class Figures:
    """Seconds until a started process is ready; acknowledged writes; kills; visibility."""

    ready: list[float] = field(default_factory=list)
    visible: dict[str, list[float]] = field(default_factory=dict)  # seconds, by kind of log
    seed: str = ""
    kills: int = 0
    writes: int = 0

    def lines(self) -> list[str]:
        """The figures as sentences."""
        said = []
        if self.ready:
            said.append(
                f"crash tests {self.seed}: {self.kills} processes killed,"
                f" {self.writes} writes acknowledged;"
                f" started to ready: median {median(self.ready):.2f} s,"
                f" most {max(self.ready):.2f} s of {len(self.ready)}"
            )
        for log, seconds in self.visible.items():
            said.append(
                f"visible in another process, {log}: median {1000 * median(seconds):.1f} ms,"
                f" p99 {1000 * quantiles(seconds, n=100)[98]:.1f} ms of {len(seconds)} writes"
            )
        return said


FIGURES = Figures()
