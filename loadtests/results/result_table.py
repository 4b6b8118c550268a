"""What was measured against what was wished for: JSON for machines, a short table for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from rich.table import Table

_VERDICTS = {True: "met", False: "NOT MET", None: "-"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; `met` is None where there is no goal."""

    what: str
    goal: str
    found: str
    met: bool | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Rows with the settings and the environment that they hold for."""

    title: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    rows: list[Row]

    def write(self, folder: Path, name: str) -> None:
        """Write NAME.json and NAME.md."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.json"
        path.write_bytes(orjson.dumps(self, option=orjson.OPT_INDENT_2))
        path.with_suffix(".md").write_text(self.markdown())

    def markdown(self) -> str:
        """The table, then settings and environment."""
        lines = [f"# {self.title}", "", "| what | goal | found | |", "|---|---|---|---|"]
        lines += [
            f"| {row.what} | {row.goal} | {row.found} | {_VERDICTS[row.met]} |" for row in self.rows
        ]
        lines += ["", *_listed("Settings", self.settings)]
        lines += ["", *_listed("Environment", self.environment), ""]
        return "\n".join(lines)

    def table(self) -> Table:
        """The same table for a terminal."""
        table = Table(title=self.title, show_lines=True)
        for heading in ("what", "goal", "found", ""):
            table.add_column(heading)
        for row in self.rows:
            table.add_row(row.what, row.goal, row.found, _VERDICTS[row.met])
        return table


def _listed(heading: str, facts: dict[str, Any]) -> list[str]:
    return [f"{heading}:", "", *(f"- {name}: {value}" for name, value in facts.items())]
