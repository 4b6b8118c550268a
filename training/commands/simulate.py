"""`python -m training simulate stream`: recall of novel labels by the time since their post."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from service.command_line import open_console
from service.core.bundle import manifest
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_unwritable, write_file
from training.datasets import novel_split
from training.experiments.replay import (
    AGES,
    CLICKS,
    CUTS,
    Bucket,
    ExpectedLabel,
    ReplayResult,
    buckets,
    replay,
    schedule,
)
from training.experiments.service_client import RunningService, connect, start
from training.progress import stages

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
    """Post novel labels between queries, and measure their recall by the time since their post.

    Queries are sent one by one over HTTP; a label counts for a query if it was posted before the
    query. `report --streams FILE` draws the result.

    Parameters
    ----------
    data
        SPLIT, as `python -m training split novel` writes it.
    bundle
        A bundle of SPLIT/seen; it is served with a new label log during the replay.
    url
        In place of a bundle: a running service, such as http://127.0.0.1:8000. It keeps the labels.
    one_shot
        Post each label with a query that it was clicked for.
    learn
        Post each query's labels as a click after its answer.
    seed
        Seed of the order of queries and of the times at which labels are posted.
    json
        Also write the figures, in percent, to this file.
    """
    if (bundle is None) == (url is None):
        raise InvalidInput("give either --bundle or --url")
    if json is not None:
        refuse_unwritable(json.parent)
    split = novel_split.read(data)
    if bundle is not None:
        _refuse_other_labels(bundle, split)
    console = open_console()
    with connect(str(url)) if bundle is None else start(bundle) as service:
        expected = _replay_all(split, service, console, seed=seed, one_shot=one_shot, learn=learn)
    if not expected:
        raise InvalidInput(f"{data}: no test row has a novel label that was posted before it")
    measured = ReplayResult(
        dataset=split.everything.name,
        served=str(bundle or url),
        seed=seed,
        one_shot=one_shot,
        learn=learn,
        asked=len(expected),
        by_age=tuple(buckets(expected, AGES, lambda label: label.age)),
        by_clicks=tuple(buckets(expected, CLICKS, lambda label: label.clicks)),
    )
    console.print(_table("queries since it was posted", measured.by_age, measured.dataset))
    if learn:
        console.print(_table("clicks learned", measured.by_clicks, measured.dataset))
    if json is not None:
        write_file(json, orjson.dumps(asdict(measured), option=orjson.OPT_INDENT_2) + b"\n")


def _replay_all(
    split: novel_split.NovelSplit,
    service: RunningService,
    console: Console,
    *,
    seed: int,
    one_shot: bool,
    learn: bool,
) -> list[ExpectedLabel]:
    """Replay all test rows with a progress bar."""
    plan = schedule(split, seed=seed)
    with stages(console) as report:
        labels = replay(
            split,
            plan,
            service,
            one_shot=one_shot,
            learn=learn,
            progress=lambda done: report("replay", done, len(plan.rows)),
        )
        return list(labels)


def _refuse_other_labels(bundle: Path, split: novel_split.NovelSplit) -> None:
    facts = manifest.read(bundle)
    if facts.memory.labels != split.facts.seen:
        raise InvalidInput(
            f"{bundle} has {facts.memory.labels} labels, and SPLIT/seen {split.facts.seen}"
        )


def _table(x: str, measured: Sequence[Bucket], name: str) -> Table:
    table = Table(title=f"{name}: recall of novel labels, percent")
    for column in (x, "asked", *(f"R@{k}" for k in CUTS)):
        table.add_column(column, justify="right")
    for bucket in measured:
        figures = (f"{bucket.recall[f'R@{k}']:.2f}" for k in CUTS)
        table.add_row(f"from {bucket.first:,}", f"{bucket.asked:,}", *figures)
    return table
