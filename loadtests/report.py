"""The report of a load test: figures next to their goals, as JSON and as a Markdown table.

It also names what the figures depend on: settings, processor, libraries, load. It never names a
machine.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson

_VERDICTS = {True: "met", False: "NOT MET", None: "-"}
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "avx_vnni")
_LIBRARIES = (
    "keymatch", "numpy", "onnxruntime", "onnxruntime-gpu", "faiss-cpu", "faiss-gpu", "fastapi",
    "uvicorn", "pydantic",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table; `met` is None if there is no goal."""

    what: str
    goal: str = "-"
    measured: str
    met: bool | None = None
    figures: dict[str, Any] = field(default_factory=dict)  # numbers for the JSON file

    @classmethod
    def bounded(
        cls,
        what: str,
        value: float,
        *,
        least: float | None = None,
        most: float | None = None,
        unit: str = "",
        measured: str = "",
        sound: bool = True,
        figures: dict[str, Any] | None = None,
    ) -> Row:
        """Return a row whose goal is a bound of a figure, `least` or `most`, and that it is sound.

        Without a bound, the row is not judged.
        """
        measured = measured or f"{value:.2f}{unit}"
        figures = {"value": value} if figures is None else figures
        if least is None and most is None:
            return cls(what=what, measured=measured, figures=figures)
        goal = f"<= {most:g}{unit}" if least is None else f">= {least:g}{unit}"
        met = sound and (least is None or value >= least) and (most is None or value <= most)
        return cls(what=what, goal=goal, measured=measured, met=met, figures=figures)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Rows, with the settings of the run and the machine on which they were measured."""

    title: str
    settings: dict[str, Any]
    rows: list[Row]
    environment: dict[str, Any] = field(default_factory=lambda: environment())

    @property
    def status(self) -> int:
        """The exit status: 1 if a goal is missed."""
        return int(any(row.met is False for row in self.rows))

    def write(self, folder: Path, name: str) -> None:
        """Write NAME.json and NAME.md into `folder`, which is created if it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.json"
        path.write_bytes(orjson.dumps(self, option=orjson.OPT_INDENT_2))
        path.with_suffix(".md").write_text(self.markdown())

    def markdown(self) -> str:
        """Return the table, followed by settings and environment."""
        lines = [f"# {self.title}", "", "| what | goal | measured | |", "|---|---|---|---|"]
        for row in self.rows:
            cells = (row.what, row.goal, row.measured, _VERDICTS[row.met])
            lines.append(f"| {' | '.join(cells)} |")
        for heading, facts in (("Settings", self.settings), ("Environment", self.environment)):
            listed = [f"- {name}: {value}" for name, value in facts.items()]
            lines += ["", f"{heading}:", "", *listed]
        return "\n".join([*lines, ""])


def failures_text(failures: dict[str, int]) -> str:
    """Return the end of a table cell: the failures, or nothing."""
    return f"; FAILED: {failures}" if failures else ""


def environment() -> dict[str, Any]:
    """Return processor, memory, kernel, library versions and load average, for a report."""
    processor: dict[str, str] = {}
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
        pairs = (line.partition(":") for line in first.splitlines())
        processor = {name.strip(): value.strip() for name, _, value in pairs}
    flags = set(processor.get("flags", "").split())
    libraries = {}
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):  # it is not installed
            libraries[name] = version(name)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": processor.get("model name", platform.machine()),
        "flags": [flag for flag in _FLAGS if flag in flags],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "libraries": libraries,
        "load_average": list(os.getloadavg()),
    }
