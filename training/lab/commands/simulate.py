"""`keymatch lab simulate stream`: measures recall of novel labels by the time since their post."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import App, Parameter

from service.child_server import Client, running_server
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
    bundle: Path | None = None,
    url: str | None = None,
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
    url
        Instead of a bundle: a running service, such as http://127.0.0.1:8000. It keeps the labels.
    one_shot
        Post each label with a query that it was clicked for.
    learn
        After each answer, post the query's labels as a click.
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
    plan = schedule(split, seed=seed)
    with _service(bundle, url) as service, stages(console) as report:
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
        served=str(bundle or url),
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


@contextmanager
def _service(bundle: Path | None, url: str | None) -> Iterator[Client]:
    """Connect to the service at `url`, or serve `bundle` during the block and connect to it.

    Raises `InvalidInput` if no service is ready at `url`.
    """
    with nullcontext() if bundle is None else running_server(bundle) as server:
        address = str(url) if server is None else server.url
        parts = urlsplit(address)
        if parts.scheme != "http" or not parts.hostname:
            raise InvalidInput(f"--url {address!r} is not of the form http://HOST:PORT")
        with closing(Client(parts.hostname, parts.port or 80)) as service:
            if not service.ready():
                raise InvalidInput(f"--url {address}: no service is ready there")
            yield service


def _refuse_other_labels(bundle: Path, split: novel_split.NovelSplit) -> None:
    facts = manifest.read(bundle)
    require_held_out(facts)
    if facts.memory.labels != split.facts.seen:
        raise InvalidInput(
            f"{bundle} has {facts.memory.labels} labels, and SPLIT/seen {split.facts.seen}"
        )
