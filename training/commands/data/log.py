"""`python -m training data log`: what a service has learned becomes the next training's data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from service.command_line import open_console
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_existing, refuse_unwritable
from service.core.label_log import open_log
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.datasets.learned.build import LearnedOptions, learned_dataset
from training.datasets.learned.half_life import require_half_life
from training.datasets.learned.history import History, read_history
from training.datasets.learned.moment import Moment
from training.datasets.learned.training_rows import served_labels

STATE_VARIABLE = "KEYMATCH_STATE"  # that of the service: a URL may hold a password


def log(
    *,
    bundle: Path,
    state: Annotated[str, Parameter(env_var=STATE_VARIABLE)],
    out: Path,
    data: Path | None = None,
    since: str | None = None,
    test_since: str | None = None,
    test_fraction: float | None = None,
    half_life: float | None = None,
    seed: int = 0,
) -> None:
    """Write what a bundle and its label log hold as a data set for the next training.

    It has the bundle's training rows and labels, the labels that were posted, with their queries,
    and the clicks; what was deleted is gone. A pair's clicks are added to its weight in the
    training rows. The service may run meanwhile: nothing is written to its log.

    Parameters
    ----------
    bundle
        The folder of the bundle that is served.
    state
        The folder or the PostgreSQL URL of the label log.
    out
        The folder to write; it must not exist yet.
    data
        The data set that the bundle was made from: its test rows, weights, filtered pairs and
        metadata are carried over. Clicks on a test query join its test row. The items are those
        that are served, or without an item memory its own, after the log's writes of items.
    since
        Add only what was learned since then: a date or time (2026-11-30, 2026-11-30T08:00; UTC),
        Unix seconds (@1796000000), or the number of an event (1200). Deletions always count.
    test_since
        Put the queries that were first seen since then into the test split, so that later clicks
        measure the next training. Written like --since.
    test_fraction
        The share of queries that go to the test split, by the hash of `data pairs`; default: 0.2.
        Not beside --data or --test-since.
    half_life
        Multiply a click's weight by 0.5 ** (age / DAYS); its age is that of its event in the log,
        counted back from the newest one. Default: old clicks count as much as new ones.
    seed
        That of `data pairs`: another seed gives another split.
    """
    refuse_existing(out)
    refuse_unwritable(out)
    _refuse_two_splits(test_fraction, data, test_since)
    options = _options(since, test_since, test_fraction, half_life, seed=seed)
    begin = Moment() if since is None else Moment.parse(since, option="--since")
    recent = None if test_since is None else Moment.parse(test_since, option="--test-since")
    before = None if data is None else lf_xmc.read(data)
    with open_console(stderr=True).status("reading the bundle and its log", spinner="dots"):
        opened = open_bundle(bundle)
        history = _history(opened, state, before, begin, recent, half_life)
        learned = learned_dataset(history, before, options=options, name=out.resolve().name)
        _refuse_empty(learned, recent_is_test=options.recent_is_test)
        lf_xmc.write(learned, out)
    for line in _summary(history, learned, out):
        open_console().print(line, soft_wrap=True)


def _refuse_two_splits(fraction: float | None, data: Path | None, test_since: str | None) -> None:
    if fraction is not None and (data is not None or test_since is not None):
        raise InvalidInput(
            "--test-fraction cannot stand beside --data or --test-since, which say what is test"
        )


def _options(
    since: str | None,
    test_since: str | None,
    test_fraction: float | None,
    half_life: float | None,
    *,
    seed: int,
) -> LearnedOptions:
    """What becomes of the history; raises `InvalidInput` for numbers out of range."""
    if half_life is not None:
        require_half_life(half_life)
    return LearnedOptions(
        everything=since is None,
        recent_is_test=test_since is not None,
        test_fraction=0.2 if test_fraction is None else test_fraction,
        seed=seed,
    )


def _history(
    bundle: Bundle,
    state: str,
    data: Dataset | None,
    since: Moment,
    recent_from: Moment | None,
    half_life: float | None,
) -> History:
    held = bundle.manifest.learned if data is None else data.learned
    with closing(open_log(state, create=False)) as label_log:
        return read_history(
            bundle,
            label_log,
            held=held,
            since=since,
            recent_from=recent_from,
            half_life=half_life,
        )


def _refuse_empty(dataset: Dataset, *, recent_is_test: bool) -> None:
    """Raise `InvalidInput` where no training rows are left, or no query is recent."""
    if not len(dataset.train) or (recent_is_test and not len(dataset.test)):
        side = "test" if len(dataset.train) else "train"
        raise InvalidInput(
            f"no query is left for the {side} split: choose another --test-since, --test-fraction"
            " or --seed"
        )


def _summary(history: History, learned: Dataset, out: Path) -> Iterator[str]:
    """What was read, what of it no data set can hold, and what was written."""
    counts, view, bundle = history.counts, history.view, history.view.bundle
    labels = served_labels(view)
    novel = sum(label.novel for label in labels)
    yield (
        f"bundle {bundle.manifest.name}: {bundle.instances:,} instances, {bundle.labels:,} labels;"
        f" log up to event {view.version:,}: {counts.labels:,} labels posted, {counts.deletions:,}"
        f" deletions, {counts.instances:,} clicks"
    )
    yield (
        f"now served: {len(labels):,} labels, {novel:,} of them new; clicks of"
        f" {len(view.ownership.clicks):,} queries"
    )
    if view.items is not None or counts.items or counts.item_deletions:
        yield _summary_of_items(history, learned)
    if history.unknown:
        yield (
            f"{history.unknown:,} clicks name a label that neither bundle nor log has: it was"
            " deleted before this bundle was made, or the bundle is that of another log"
        )
    if any(label.metadata for label in labels):
        yield "the metadata of posted labels is not part of a data set; the log keeps it"
    if history.served is not None and history.served != bundle.folder.resolve().name:
        yield f"the service was told to serve {history.served}; this is another bundle"
    yield (
        f"{out}: {len(learned.train):,} train and {len(learned.test):,} test rows,"
        f" {len(learned.labels):,} labels"
    )


def _summary_of_items(history: History, learned: Dataset) -> str:
    """How many items the data set has, and what the log says of them."""
    counts, served = history.counts, history.view.items
    written = f"in the log {counts.items:,} were posted and {counts.item_deletions:,} deleted"
    if served is not None:
        return f"items: {len(served):,} served; {written}"
    without = f"items: {written}; the bundle has no item memory"
    if learned.metadata is None:
        return f"{without}, and without a --data that has metadata none are written"
    return f"{without}; {len(learned.metadata):,} are written: those of --data after these writes"
