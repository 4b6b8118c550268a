"""`python -m loadtests.opponents`: Keymatch beside three other ways to serve the same keys.

The opponents are a plain stack, txtai's API service, and Chroma behind a thin service. Each runs in
a server process of its own, started here, and gets the same traffic in turn. Their packages are
installed into a virtual environment of their own. Writes opponents.json and opponents.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from loadtests.measure.environment import environment
from loadtests.opponents.comparison_rows import store_rows, traffic_rows
from loadtests.opponents.environment import prepared_environment
from loadtests.opponents.registry import chosen
from loadtests.opponents.rounds import Plan, play, warm_up
from loadtests.opponents.sides import running_sides
from loadtests.opponents.stores import Setup, Store, load_stores
from loadtests.queries import distinct, read_queries
from loadtests.results.result_table import Report, Row
from service.command_line import open_console, run
from service.core.bundle import manifest
from training.commands.options import MANY

app = App(name="loadtests.opponents", help=__doc__)


@app.default
def opponents(
    *,
    bundle: Path,
    out: Path,
    only: Annotated[tuple[str, ...], MANY] = (),
    keys: int | None = None,
    packages: Path | None = None,
    plan: Annotated[Plan, Parameter(name="*")] = Plan(),  # noqa: B008 (frozen)
) -> int:
    """Load the keys, start all servers, and measure in turn.

    Parameters
    ----------
    bundle
        Keymatch's bundle. Its key vectors fill the opponents' stores, and its texts are the
        queries. Opponents encode queries with all-MiniLM-L6-v2, so only their speed is compared.
    out
        Folder for the report, the stores and the opponents' environment.
    only
        Names of opponents: plain, txtai, chroma. All by default.
    keys
        Use only so many of the bundle's keys, on all sides.
    packages
        The opponents' virtual environment, OUT/environment by default. Packages that it lacks are
        installed into it.
    """
    console, named, facts = open_console(stderr=True), chosen(only), manifest.read(bundle)
    required = [package for opponent in named.values() for package in opponent.packages]
    python, versions = prepared_environment(
        packages or out / "environment", required, console=console
    )
    graph = facts.index.parameters()
    setup = Setup(python=python, graph=graph, opponents=named)
    total = keys or facts.memory.instances + facts.memory.labels
    parameters = f"{graph.m}-{graph.ef_construction}-{graph.ef}"
    folder = out / "stores" / f"{facts.encoder.fingerprint[:12]}-{total}-{parameters}"
    stores = load_stores(bundle, folder, setup, keys=keys, console=console)
    console.print("measuring ...")
    Report(
        title="Keymatch beside other systems",
        settings={"bundle": facts.name, "keys": total, **asdict(plan)},
        environment={**environment(), "opponents": versions},
        rows=_measured_rows(setup, stores, plan, read_queries(bundle)),
    ).publish(out, "opponents")
    return 0


def _measured_rows(
    setup: Setup, stores: Mapping[str, Store], plan: Plan, texts: list[str]
) -> list[Row]:
    queries = distinct(texts, seed=plan.seed)
    with running_sides(setup, stores) as sides:
        for side in sides:
            warm_up(side, queries)
        rows = traffic_rows(play(sides, plan, queries))
        return rows + store_rows(sides, stores)


if __name__ == "__main__":
    sys.exit(run(app))
