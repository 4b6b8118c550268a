"""The frame of every load test: options, rows with goals, and a report.

A scenario declares its options as fields and yields rows. The harness makes the command, starts
servers, and writes the report after each row, because a later part may fail.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import MISSING, dataclass, field, fields
from inspect import getmodule
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

from cyclopts import App, Parameter
from rich.markdown import Markdown

from loadtests.queries import distinct, read_queries
from loadtests.report import Report, Row
from service.child_server import Server, running_server
from service.command_line import open_console, run
from service.core.bundle import manifest


def option(text: str, default: Any = MISSING) -> Any:
    """Return a field of a scenario with its help; it is required if it has no default."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A load test of one bundle; its lower-case name is that of the command and of the report."""

    title: ClassVar[str]
    judged: ClassVar[bool] = False  # whether a missed goal makes the exit status 1

    bundle: Path = option("The bundle's folder; its texts are the queries.")
    out: Path = option("Folder for the report, as JSON and as a table.")
    seed: int = option("Draws queries and arrivals.", 0)

    def rows(self) -> Iterator[Row]:
        """Measure, and yield each row as soon as it is known."""
        raise NotImplementedError

    @classmethod
    def command(cls) -> None:
        """Run as the command of a module: read the options, measure, report, and exit."""
        sys.exit(run(cls.app()))

    @classmethod
    def app(cls) -> App:
        """Return the command; its options are the scenario's fields."""
        module = getmodule(cls)
        app = App(
            name=f"loadtests.{cls.__name__.lower()}",
            help=module.__doc__ if module else "",
            default_parameter=Parameter(consume_multiple=True, negative_iterable=()),
        )

        def measure(options: Scenario) -> int:
            """Measure and report."""
            return options.run()

        # cyclopts would look for the names in a base class's annotations in the subclass's module.
        cls.__init__.__annotations__ = get_type_hints(cls, include_extras=True)
        measure.__annotations__["options"] = Annotated[cls, Parameter(name="*")]
        app.default(measure)
        return app

    def run(self) -> int:
        """Measure and report; return the exit status."""
        name = type(self).__name__.lower()
        manifest.read(self.bundle)  # fail now, not after minutes of work, if it is missing
        report = Report(title=self.title, settings=self.settings(), rows=[])
        for row in self.rows():
            report.rows.append(row)
            report.write(self.out, name)
        open_console().print(Markdown(report.markdown()))
        return report.status if self.judged else 0

    def settings(self) -> dict[str, Any]:
        """Return the options for the report, folders by their names alone."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        del options["out"]
        return {
            name: value.name if isinstance(value, Path) else value
            for name, value in options.items()
            if value is not None
        }

    def texts(self, file: Path | None = None, *, order: int = 0) -> Iterator[str]:
        """Yield the bundle's texts, or those of a file, in a random order without end."""
        return distinct(read_queries(self.bundle, file), seed=self.seed + order)

    def server(self, *options: str, **how: Any) -> AbstractContextManager[Server]:
        """Serve the bundle during a block; `how` are further arguments of `running_server`."""
        return running_server(self.bundle, options=["--no-access-log", *options], **how)


def say(sentence: str) -> None:
    """Tell the user what is measured now."""
    open_console(stderr=True).print(sentence)
