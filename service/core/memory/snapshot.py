"""A snapshot: a view written as a new bundle, in which learned rows become bundle rows.

Dead rows and deleted labels are left out, so rows and columns get new numbers. Label details store
everything about a label except its id and text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from service.core.bundle.content import BundleContent, write_bundle
from service.core.bundle.irene_files import NovelFiles
from service.core.bundle.label_details import Details, dump
from service.core.index.protocol import Progress
from service.core.memory.part import PLAIN_HOUR, PLAIN_WEIGHT
from service.core.memory.view import View
from service.core.types import Floats, Indices, Label, Rows, label_as


def write_snapshot(
    view: View,
    target: Path,
    *,
    name: str,
    log: str,
    log_chain: str = "",
    progress: Progress = lambda rows: None,
) -> None:
    """Write a view as the bundle `name` into the new folder `target`.

    `log` is the id of the label log that the view reflects. `log_chain` is the log's chain at the
    view's version, hexadecimal. `progress` is called with the number of indexed rows. Raises
    `InvalidInput` if `target` exists.
    """
    content = replace(snapshot(view, name=name, log=log), log_chain=log_chain)
    write_bundle(content, target, progress=progress)


def snapshot(view: View, *, name: str, log: str) -> BundleContent:
    """Return the content of a view, or of a tenant's view alone, as the content of a bundle."""
    rows, columns = view.alive_rows(), np.arange(view.labels.columns, dtype=np.int32)
    columns = columns[~view.labels.is_deleted(columns)]
    instances = rows[view.is_instance(rows)]
    label_rows = [
        view.ownership.rows_of_label(column, view.bundle)[0] for column in columns.tolist()
    ]
    votes, counts, weights, hours = view.timed_votes(instances)
    new_column = np.full(view.labels.columns, -1, np.int32)
    new_column[columns] = np.arange(len(columns), dtype=np.int32)
    labels = [view.labels.at(column) for column in columns.tolist()]
    kept = np.concatenate([instances, np.array(label_rows, np.int64)])
    new_row = {row: place for place, row in enumerate(instances.tolist())}
    content = BundleContent.like(
        view.bundle,
        name=name,
        keys=view.vectors(kept),
        indptr=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        indices=new_column[votes],
        instance_texts=[view.text(row) for row in instances.tolist()],
        label_ids=[label.id for label in labels],
        label_texts=[label.text for label in labels],
        metrics=view.bundle.manifest.metrics,
    )
    return replace(
        content,
        vote_weights=weights if (weights != PLAIN_WEIGHT).any() else None,
        vote_hours=hours if (hours != PLAIN_HOUR).any() else None,
        clicks=np.array(
            sorted(
                new_row[click.row]
                for click in view.ownership.clicks.values()
                if click.row in new_row  # else it is another tenant's
            ),
            np.int64,
        ),
        aliases=np.flatnonzero(view.is_alias(instances)),
        posted=np.flatnonzero(view.posted(kept)),
        vote_clicks=_vote_clicks(view, instances),
        hubs=view.penalties(kept) if view.bundle.has_hubs else None,
        label_details=_details(view, labels, new_row),
        version=view.version,
        log=log,
        novel=_novel(view, new_column),
        items=None if view.items is None else view.items.as_files(),
        rules=view.rules.stored(),
    )


def _vote_clicks(view: View, instances: Rows) -> Floats | None:
    """Return for how many clicks a vote of weight 1 of the instances [n] stands; None: for one."""
    clicks, origins = np.ones(len(instances), np.float32), view.origins(instances)
    clicks[origins >= 0] = view.bundle.vote_clicks[origins[origins >= 0]]
    place_of = {row: place for place, row in enumerate(instances.tolist())}
    for click in view.ownership.clicks.values():
        if click.row in place_of:
            clicks[place_of[click.row]] = click.scale
    return clicks if (clicks != 1.0).any() else None


def _novel(view: View, new_column: Indices) -> NovelFiles | None:
    """Return the classifiers of labels that were not posted again, with the new columns.

    A label that was posted again may have a different text from the one its classifier learned.
    """
    files = view.bundle.novel
    if files is None:
        return None
    kept = np.array(
        [
            new_column[column] >= 0 and view.ownership.label_rows.get(column) is None
            for column in files.columns.tolist()
        ],
        bool,
    )
    return replace(
        files,
        classifiers=files.classifiers[kept],
        columns=new_column[files.columns[kept]].astype(np.int64),
    )


def _details(view: View, labels: Sequence[Label], new_row: dict[int, int]) -> list[str]:
    """Return the details text of each label, or an empty list if no label has details."""
    details = [
        dump(
            label_as(
                Details,
                label,
                rows=tuple(
                    new_row[row]
                    for row in view.ownership.rows_of_label(label.index, view.bundle)[1:]
                ),
            )
        )
        for label in labels
    ]
    return details if any(details) else []
