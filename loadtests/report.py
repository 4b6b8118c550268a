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
from rich.table import Table

from service.command_line import open_console

_HEADINGS = ("what", "goal", "measured", "")
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
        measured: str,
        sound: bool = True,
        figures: dict[str, Any],
    ) -> Row:
        """Return a row whose goal is a bound of a figure, `least` or `most`, and that it is sound.

        Without a bound, the row is not judged.
        """
        if least is None and most is None:
            return cls(what=what, measured=measured, figures=figures)
        goal = f">= {least:g}{unit}" if most is None else f"<= {most:g}{unit}"
        met = sound and (value >= least if least is not None else value <= (most or 0.0))
        return cls(what=what, goal=goal, measured=measured, met=met, figures=figures)

    def cells(self) -> tuple[str, str, str, str]:
        """Return the row as text, one cell per heading of the table."""
        return self.what, self.goal, self.measured, _VERDICTS[self.met]


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

    def publish(self, folder: Path, name: str) -> None:
        """Write NAME.json and NAME.md, and print the table."""
        self.write(folder, name)
        open_console().print(self.table())

    def write(self, folder: Path, name: str) -> None:
        """Write NAME.json and NAME.md into `folder`, which is created if it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.json"
        path.write_bytes(orjson.dumps(self, option=orjson.OPT_INDENT_2))
        path.with_suffix(".md").write_text(self.markdown())

    def markdown(self) -> str:
        """Return the table, followed by settings and environment."""
        lines = [f"# {self.title}", "", f"| {' | '.join(_HEADINGS)} |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(row.cells())} |" for row in self.rows]
        lines += ["", *_listed("Settings", self.settings)]
        lines += ["", *_listed("Environment", self.environment), ""]
        return "\n".join(lines)

    def table(self) -> Table:
        """Return the same table for a terminal."""
        table = Table(title=self.title, show_lines=True)
        for heading in _HEADINGS:
            table.add_column(heading)
        for row in self.rows:
            table.add_row(*row.cells())
        return table


def failures_text(failures: dict[str, int]) -> str:
    """Return the end of a table cell: the failures, or nothing."""
    return f"; FAILED: {failures}" if failures else ""


def _listed(heading: str, facts: dict[str, Any]) -> list[str]:
    return [f"{heading}:", "", *(f"- {name}: {value}" for name, value in facts.items())]


def environment() -> dict[str, Any]:
    """Return processor, memory, kernel, library versions and load average, for a report."""
    processor = _processor()
    flags = set(processor.get("flags", "").split())
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": processor.get("model name", platform.machine()),
        "flags": [flag for flag in _FLAGS if flag in flags],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "libraries": _versions(),
        "load_average": list(os.getloadavg()),
    }


def _versions() -> dict[str, str]:
    """Return the version of each library that is installed."""
    versions = {}
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _processor() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text().split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
