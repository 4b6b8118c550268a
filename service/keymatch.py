"""`keymatch`: one command for everything, and the table of all commands.

A command's module is imported when it is called. `python -m service`, `python -m training` and
`python -m export` have their package's commands, without the words `export` and `lab`.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from cyclopts import App

from service.command_line import run

Commands = dict[str, tuple[str, str]]  # name -> (module:function, one-line description)

USERS: Commands = {
    "serve": ("service.cli.serve:serve", "Answer over HTTP, and learn new labels."),
    "predict": ("service.cli.predict:predict", "Answer every query of a file."),
    "compare": ("service.cli.compare:compare", "Show what changes between two bundles."),
    "snapshot": ("service.cli.snapshot:snapshot", "Write a bundle and its log as a new bundle."),
    "log": ("service.cli.log:log", "Show, verify, save or cut the label log."),
    "check": ("service.cli.check:check", "Verify a bundle."),
    "key": ("service.cli.key:key", "Make an API key."),
    "data": ("training.commands.data:app", "Write data sets, and describe them."),
    "fit": ("training.commands.fit:fit", "Train on any data within some minutes."),
    "score": ("training.commands.score:score", "Measure a bundle, a run or an encoder."),
}
EXPORT: Commands = {
    "bundle": ("export.commands.bundle:bundle", "Make a bundle of an encoder and a data set."),
    "encoder": (
        "export.commands.encoder:encoder",
        "Turn a checkpoint into an encoder that needs no torch.",
    ),
}
LAB: Commands = {
    "recipes": ("training.commands.train:list_recipes", "List the recipes of `train`."),
    "train": ("training.commands.train:train", "Train an encoder by a recipe."),
    "rerank": ("training.commands.rerank:rerank", "Learn a reranker for a run."),
    "peer": ("training.lab.commands.peer:peer", "Train and measure a system by others."),
    "compare": ("training.lab.commands.compare:compare", "Train and score a list of systems."),
    "report": ("training.lab.commands.report:report", "Compare scored runs on one page."),
    "budget": ("training.lab.commands.budget:budget", "Measure smaller memories."),
    "split": ("training.lab.commands.split:app", "Split data sets as in the papers' experiments."),
    "score-novel": (
        "training.lab.commands.score_novel:score_novel",
        "Measure a bundle on labels that are not in it.",
    ),
    "simulate": ("training.lab.commands.simulate:app", "Replay data sets as traffic."),
}


def lab_commands() -> Commands:
    """Return the commands of `keymatch lab`; a wheel has no laboratory, so it lacks most of them.

    Looks for the package's file, since importing `training` takes time.
    """
    if (Path(__file__).parents[1] / "training/lab/__init__.py").is_file():
        return LAB
    return {name: row for name, row in LAB.items() if not row[0].startswith("training.lab.")}


def group(name: str, help: str, commands: Commands) -> App:
    """Return a group of commands. Its help lists them in this order without importing them.

    Help is plain text: importing a Markdown renderer takes a quarter of a short command's time.
    """
    app = App(
        name=name,
        help=help,
        help_format="plaintext",
        version=lambda: version("keymatch"),
        sort_key=len(USERS),
    )
    for place, (command, (target, summary)) in enumerate(commands.items()):
        app.command(target, name=command, help=summary, sort_key=place)
    return app


def commands_of(package: str) -> Commands:
    """Return the commands whose modules are in a package."""
    return {
        name: row
        for table in (USERS, EXPORT, lab_commands())
        for name, row in table.items()
        if row[0].startswith(f"{package}.")
    }


def keymatch() -> App:
    """Return the command line of `keymatch`."""
    app = group(
        "keymatch",
        "Match queries to keywords: serve a bundle, learn while serving, train encoders."
        " More: README.md",
        USERS,
    )
    app.command(group("export", "Turn an encoder and a data set into a bundle.", EXPORT))
    research = "Research: recipes, other systems, reports. A checkout has more than a wheel."
    app.command(group("lab", research, lab_commands()))
    app.register_install_completion_command(help="Let this shell complete commands and options.")
    return app


def main() -> int:
    """Run the command of this process's arguments; returns its exit status."""
    return run(keymatch())


if __name__ == "__main__":
    sys.exit(main())
