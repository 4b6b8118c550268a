"""`keymatch data log`: turns what a service has learned into the next training's data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from service.command_line import DEFAULT_CACHE, STATE_VARIABLE, CacheOption, open_console
from service.core.bundle.bundle import open_bundle
from service.core.bundle.object_store import local_bundle
from service.core.changes import (
    DeleteInstance,
    DeleteItem,
    DeleteLabel,
    PutInstance,
    PutItem,
    PutLabel,
)
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_unusable
from service.core.label_log import open_log
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.datasets.learned.build import LearnedOptions, learned_dataset
from training.datasets.learned.history import History, Moment, read_history
from training.datasets.learned.training_rows import served_labels
from training.datasets.pair_weights import require_half_life


def log(
    *,
    bundle: str,
    state: Annotated[str, Parameter(env_var=STATE_VARIABLE)],
    out: Path,
    data: Path | None = None,
    since: str | None = None,
    test_since: str | None = None,
    test_fraction: float | None = None,
    half_life: float | None = None,
    seed: int = 0,
    cache: CacheOption = DEFAULT_CACHE,
) -> None:
    """Write what a bundle and its label log hold as a data set for the next training.

    It has the bundle's training rows and labels, posted labels with their queries, the metadata of
    labels as their fields, and clicks, but nothing that was deleted. A pair's clicks are added to
    its weight in the training rows. A pair that was unlearned, or clicked as negative last, is left
    out of all rows. The service may keep running: nothing is written to its log.

    Parameters
    ----------
    bundle
        The folder or URL of the bundle that is served.
    state
        The folder or the PostgreSQL URL of the label log.
    out
        The folder to write; it must not exist yet.
    data
        The data set that the bundle was made from: its test rows, weights, filtered pairs and
        metadata are carried over. Clicks on a test query join its test row. Items are those that
        are served or, without an item memory, the data set's own, updated by the log.
    since
        Add only what was learned since then: a date or time (2026-11-30, 2026-11-30T08:00; UTC),
        Unix seconds (@1796000000), or the number of an event (1200). Deletions always count.
    test_since
        Put the queries that were first seen since then into the test split, so later clicks measure
        the next training. Written like --since.
    test_fraction
        The share of queries that go to the test split, chosen by the hash of `data pairs`; default:
        0.2. Not with --data or --test-since.
    half_life
        Multiply a click's weight by 0.5 ** (age / DAYS). The age is counted from the newest event
        in the log. Default: old clicks count as much as new ones.
    seed
        Another seed gives another split, as in `data pairs`.
    cache
        Folder for copies of bundles that URLs name.
    """
    refuse_unusable(out)
    if test_fraction is not None and (data is not None or test_since is not None):
        raise InvalidInput(
            "--test-fraction cannot stand beside --data or --test-since, which say what is test"
        )
    require_half_life(half_life)
    options = LearnedOptions(
        everything=since is None,
        recent_is_test=test_since is not None,
        test_fraction=0.2 if test_fraction is None else test_fraction,
        seed=seed,
    )
    begin = Moment() if since is None else Moment.parse(since, option="--since")
    recent = None if test_since is None else Moment.parse(test_since, option="--test-since")
    before = None if data is None else lf_xmc.read(data)
    with open_console(stderr=True).status("reading the bundle and its log", spinner="dots"):
        opened = open_bundle(local_bundle(bundle, cache))
        with closing(open_log(state, create=False)) as label_log:
            history = read_history(
                opened,
                label_log,
                held=opened.manifest.learned if before is None else before.learned,
                since=begin,
                recent_from=recent,
                half_life=half_life,
            )
        learned = learned_dataset(history, before, options=options, name=out.resolve().name)
        if not len(learned.train) or (options.recent_is_test and not len(learned.test)):
            side = "test" if len(learned.train) else "train"
            raise InvalidInput(
                f"no query is left for the {side} split: choose another --test-since,"
                " --test-fraction or --seed"
            )
        lf_xmc.write(learned, out)
    for line in _summary(history, learned, out):
        open_console().print(line, soft_wrap=True)


def _summary(history: History, learned: Dataset, out: Path) -> Iterator[str]:
    """Yield lines about what was read, what a data set cannot hold, and what was written."""
    count, view, bundle = history.counts.written, history.view, history.view.bundle
    labels = served_labels(view)
    novel = sum(label.novel for label in labels)
    yield (
        f"bundle {bundle.manifest.name}: {bundle.instances:,} instances, {bundle.labels:,} labels;"
        f" log up to event {view.version:,}: {count[PutLabel]:,} labels posted,"
        f" {count[DeleteLabel]:,} deletions, {count[PutInstance]:,} clicks"
    )
    yield (
        f"now served: {len(labels):,} labels, {novel:,} of them new; clicks of"
        f" {len(view.ownership.clicks):,} queries"
    )
    if unlearned := count[DeleteInstance]:
        yield f"queries that were unlearned: {unlearned:,}; negative pairs are left out as well"
    if view.items is not None or count[PutItem] or count[DeleteItem]:
        yield _summary_of_items(history, learned)
    if history.unknown:
        yield (
            f"{history.unknown:,} clicks name a label that neither bundle nor log has: it was"
            " deleted before this bundle was made, or the bundle is that of another log"
        )
    if any(label.starts_at is not None or label.expires_at is not None for label in labels):
        yield "the dates of posted labels are not part of a data set; the log keeps them"
    if history.served is not None and history.served != bundle.folder.resolve().name:
        yield f"the service was told to serve {history.served}; this is another bundle"
    yield (
        f"{out}: {len(learned.train):,} train and {len(learned.test):,} test rows,"
        f" {len(learned.labels):,} labels"
    )


def _summary_of_items(history: History, learned: Dataset) -> str:
    count, served = history.counts.written, history.view.items
    written = f"in the log {count[PutItem]:,} were posted and {count[DeleteItem]:,} deleted"
    if served is not None:
        return f"items: {len(served):,} served; {written}"
    without = f"items: {written}; the bundle has no item memory"
    if learned.metadata is None:
        return f"{without}, and without a --data that has metadata none are written"
    return f"{without}; {len(learned.metadata):,} are written: those of --data after these writes"
