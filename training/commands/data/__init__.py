"""`keymatch data`: the group of commands that write and describe data sets."""

from __future__ import annotations

from cyclopts import App

app = App(name="data", help="Write data sets, and describe them.")
for _place, _summary in {
    "pairs:pairs": "Turn a table of (query, keyword) rows into a data set.",
    "log:log": "Turn a bundle and its label log into the next data set.",
    "describe:describe": "Check a data set, and print its sizes.",
    "sample:sample": "Write a data set that measures `fit`.",
    "table:table": "Write one split as a table.",
    "sample:moby": "Write the Moby thesaurus: a root and its related terms.",
    "sample:texts": "Write millions of real short texts, to measure large bundles.",
}.items():
    app.command(f"training.commands.data.{_place}", help=_summary)
