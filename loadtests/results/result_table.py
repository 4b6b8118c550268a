"""A benchmark's report: measurements beside their goals, as JSON and as a Markdown table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from rich.table import Table

from service.command_line import open_console

_HEADINGS = ("what", "goal", "measured", "")
_VERDICTS = {True: "met", False: "NOT MET", None: "-"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; `met` is None where there is no goal."""

    what: str
    goal: str
    measured: str
    met: bool | None = None
    figures: dict[str, Any] = field(default_factory=dict)  # numbers for the JSON file

    def cells(self) -> tuple[str, str, str, str]:
        """The row as text, one cell per heading of the table."""
        return self.what, self.goal, self.measured, _VERDICTS[self.met]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Rows, with the settings of the run and the machine that they were measured on."""

    title: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    rows: list[Row]

    def publish(self, folder: Path, name: str) -> None:
        """Write NAME.json and NAME.md, and print the table."""
        self.write(folder, name)
        open_console().print(self.table())

    def write(self, folder: Path, name: str) -> None:
        """Write NAME.json and NAME.md into `folder`, which is made if it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.json"
        path.write_bytes(orjson.dumps(self, option=orjson.OPT_INDENT_2))
        path.with_suffix(".md").write_text(self.markdown())

    def markdown(self) -> str:
        """The table, then settings and environment."""
        lines = [f"# {self.title}", "", f"| {' | '.join(_HEADINGS)} |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(row.cells())} |" for row in self.rows]
        lines += ["", *_listed("Settings", self.settings)]
        lines += ["", *_listed("Environment", self.environment), ""]
        return "\n".join(lines)

    def table(self) -> Table:
        """The same table for a terminal."""
        table = Table(title=self.title, show_lines=True)
        for heading in _HEADINGS:
            table.add_column(heading)
        for row in self.rows:
            table.add_row(*row.cells())
        return table


def _listed(heading: str, facts: dict[str, Any]) -> list[str]:
    return [f"{heading}:", "", *(f"- {name}: {value}" for name, value in facts.items())]
