"""The group of commands `python -m training data`."""

from __future__ import annotations

from collections.abc import Callable

from cyclopts import App

from service.command_line import open_console
from service.core.files.atomic import refuse_existing, refuse_unwritable
from training.commands.data.describe import describe
from training.commands.data.log import log
from training.commands.data.pairs import pairs
from training.commands.data.sample import sample
from training.commands.data.table import table
from training.commands.data.writing import Out, size_line, write
from training.datasets import BUILTIN, load_builtin

app = App(name="data", help="Write data sets, and describe them.")
app.command(pairs)
app.command(log)
app.command(describe)
app.command(sample)
app.command(table)


def builtin_command(name: str) -> Callable[..., None]:
    """Return the command that writes a data set of the table `BUILTIN`."""

    def command(*, out: Out) -> None:
        refuse_existing(out)
        refuse_unwritable(out)
        dataset = load_builtin(name)
        write(dataset, out)
        open_console().print(size_line(dataset, out), soft_wrap=True)

    command.__doc__ = BUILTIN[name].summary
    return command


for _name in BUILTIN:
    app.command(builtin_command(_name), name=_name)
