"""`keymatch lab simulate stream`: measures recall of novel labels by the time since their post."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from service.child_server import HOST, Client, running_server
from service.command_line import open_console
from service.core.bundle import manifest
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_unwritable
from training.documents import write_json
from training.evaluation.bundle_rows import require_held_out
from training.lab import novel_split
from training.lab.replay import (
    AGES,
    CLICKS,
    ReplayResult,
    buckets,
    replay,
    schedule,
)
from training.lab.report.tables import bucket_table
from training.progress import stages

app = App(name="simulate", help="Replay data sets as traffic.")
_FLAG = Parameter(negative=())


@app.command
def stream(
    *,
    data: Path,
    bundle: Path,
    one_shot: Annotated[bool, _FLAG] = False,
    learn: Annotated[bool, _FLAG] = False,
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Post novel labels between queries, and measure their recall by the time since their post.

    Queries are sent one by one over HTTP; a label counts for a query if it was posted before the
    query. `keymatch lab report --stream FILE` shows the result.

    Parameters
    ----------
    data
        SPLIT, as `keymatch lab split novel` writes it.
    bundle
        A bundle of SPLIT/seen. It is served with a new label log during the replay.
    one_shot
        Post each label with a query that it was clicked for.
    learn
        After each answer, post the query's labels as a click.
    seed
        Seed of the order of queries and of the times at which labels are posted.
    json
        Also write the figures, in percent, to this file.
    """
    if json is not None:
        refuse_unwritable(json.parent)
    split = novel_split.read(data)
    _refuse_other_labels(bundle, split)
    console = open_console()
    plan = schedule(split, seed=seed)
    with (
        running_server(bundle) as server,
        closing(Client(HOST, server.port)) as service,
        stages(console) as report,
    ):
        labels = replay(
            split,
            plan,
            service,
            one_shot=one_shot,
            learn=learn,
            progress=lambda done: report("replay", done, len(plan.rows)),
        )
        expected = list(labels)
    if not expected:
        raise InvalidInput(f"{data}: no test row has a novel label that was posted before it")
    measured = ReplayResult(
        dataset=split.everything.name,
        served=str(bundle),
        seed=seed,
        one_shot=one_shot,
        learn=learn,
        asked=len(expected),
        by_age=tuple(buckets(expected, AGES, lambda label: label.age)),
        by_clicks=tuple(buckets(expected, CLICKS, lambda label: label.clicks)),
    )
    title = f"{measured.dataset}: recall of novel labels, percent"
    console.print(bucket_table("queries since it was posted", measured.by_age).console(title))
    if learn:
        console.print(bucket_table("clicks learned", measured.by_clicks).console(title))
    if json is not None:
        write_json(json, asdict(measured))


def _refuse_other_labels(bundle: Path, split: novel_split.NovelSplit) -> None:
    facts = manifest.read(bundle)
    require_held_out(facts)
    if facts.memory.labels != split.facts.seen:
        raise InvalidInput(
            f"{bundle} has {facts.memory.labels} labels, and SPLIT/seen {split.facts.seen}"
        )
