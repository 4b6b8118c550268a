"""`python -m training simulate stream`: how soon a real service finds labels that are posted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from service.core.bundle import manifest
from service.core.errors import InvalidInput
from service.core.files.atomic import write_file
from training.datasets import novel_split
from training.experiments.replay import (
    AGES,
    CLICKS,
    CUTS,
    Bucket,
    Stream,
    buckets,
    replay,
    schedule,
)
from training.experiments.service_client import connect, start

app = App(name="simulate", help="Replay data sets as traffic.")
_FLAG = Parameter(negative=())


@app.command
def stream(
    *,
    data: Path,
    bundle: Path | None = None,
    url: str | None = None,
    one_shot: Annotated[bool, _FLAG] = False,
    learn: Annotated[bool, _FLAG] = False,
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Post novel labels between queries, and measure their recall by how long they are there.

    Through HTTP, one query after the other: what is counted for a query is what the service had
    been told by then. `report --streams FILE` draws it.

    Parameters
    ----------
    data
        SPLIT, as `python -m training split novel` writes it.
    bundle
        Serve this bundle of SPLIT/seen, with a fresh log, for the time of the replay.
    url
        In its place a service that runs, such as http://127.0.0.1:8000; it keeps what is posted.
    one_shot
        Post each label with a query that it was clicked for.
    learn
        Post each query's labels as a click once it was answered.
    seed
        Another seed is another order of queries, and other times of labels.
    json
        Also write the figures, in percent, to this file.
    """
    if (bundle is None) == (url is None):
        raise InvalidInput("give either --bundle or --url")
    split = novel_split.read(data)
    if bundle is not None:
        _refuse_other_labels(bundle, split)
    plan = schedule(split, seed=seed)
    console = Console()
    with ExitStack() as stack:
        running = connect(str(url)) if bundle is None else start(bundle)
        service = stack.enter_context(running)
        bar = stack.enter_context(Progress(console=console))
        step = bar.add_task("replay", total=len(plan.rows))
        found = list(
            replay(
                split,
                plan,
                service,
                one_shot=one_shot,
                learn=learn,
                progress=lambda done: bar.update(step, completed=done),
            )
        )
    if not found:
        raise InvalidInput(f"{data}: no test row has a novel label that was posted before it")
    measured = Stream(
        dataset=split.everything.name,
        served=str(bundle or url),
        seed=seed,
        one_shot=one_shot,
        learn=learn,
        asked=len(found),
        by_age=tuple(buckets(found, AGES, lambda one: one.age)),
        by_clicks=tuple(buckets(found, CLICKS, lambda one: one.clicks)),
    )
    console.print(_table("queries since it was posted", measured.by_age, measured.dataset))
    if learn:
        console.print(_table("clicks learned", measured.by_clicks, measured.dataset))
    if json is not None:
        write_file(json, orjson.dumps(asdict(measured), option=orjson.OPT_INDENT_2) + b"\n")


def _refuse_other_labels(bundle: Path, split: novel_split.NovelSplit) -> None:
    facts = manifest.read(bundle)
    if facts.memory.labels != split.facts.seen:
        raise InvalidInput(
            f"{bundle} has {facts.memory.labels} labels, and SPLIT/seen {split.facts.seen}"
        )


def _table(what: str, found: Sequence[Bucket], name: str) -> Table:
    table = Table(title=f"{name}: recall of novel labels, percent")
    for column in (what, "asked", *(f"R@{k}" for k in CUTS)):
        table.add_column(column, justify="right")
    for bucket in found:
        figures = (f"{bucket.recall[f'R@{k}']:.2f}" for k in CUTS)
        table.add_row(f"from {bucket.first:,}", f"{bucket.asked:,}", *figures)
    return table
