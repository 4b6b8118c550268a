"""Builds the graphs of a bundle in parts, each as a part of the work (`service.core.work_parts`).

A part's folder has the graph's files. An interrupted export continues with the graphs that are
missing. A graph is built again for other keys, parameters, or another build of the index library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from service.core.bundle.bundle import PART_KEYS, PART_SEGMENT
from service.core.bundle.content import build_part
from service.core.errors import InvalidInput
from service.core.files.folder_facts import file_facts
from service.core.index.frozen_segment import equal_path
from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import Progress
from service.core.processes.ray_cluster import Cluster
from service.core.types import Halves
from service.core.work_parts import WorkPart, run_parts

ALL_CORES = 1_000  # of a machine: a graph is built in all of them, so one at a time


def build_index_parts(
    folders: Sequence[Path],
    parameters: IndexParameters,
    progress: Progress,
    *,
    work: Path,
    cluster: Cluster | None = None,
) -> None:
    """Build the graph of each folder's keys into it, as `content.BuildParts` says.

    Finished graphs stay in `work` until it is removed. The machines of a `cluster` build one each,
    which must have the same build of the index library.
    """
    filled = [folder for folder in folders if len(_keys(folder / PART_KEYS))]
    keys = {file_facts(folder)[PART_KEYS].sha256: folder / PART_KEYS for folder in filled}
    built = run_parts(
        partial(_build, paths={digest: str(path) for digest, path in keys.items()}),
        [
            WorkPart(
                name=path.parent.name,
                arguments={
                    "keys": digest,
                    "parameters": asdict(parameters),
                    "builder": load_library(parameters.library).builder(),
                },
                size=len(_keys(path)),
            )
            for digest, path in keys.items()
        ],
        work=work,
        cluster=cluster,
        cores=ALL_CORES,
        progress=progress,
    )
    for folder, made in zip(filled, built, strict=True):
        for name in (PART_SEGMENT, equal_path(Path(PART_SEGMENT)).name):
            if (made / name).exists():
                os.link(made / name, folder / name)


def _build(
    folder: Path,
    progress: Progress,
    *,
    paths: Mapping[str, str],
    keys: str,
    parameters: dict[str, Any],
    builder: str,
) -> None:
    """Build the graph over the keys with this SHA-256, which are at one of `paths`."""
    chosen = IndexParameters(**parameters)
    if (own := load_library(chosen.library).builder()) != builder:
        raise InvalidInput(
            f"a machine of the cluster has {own}, and this one has {builder}: all must have the"
            " same, so that graphs do not depend on the machine"
        )
    build_part(_keys(Path(paths[keys])), folder, chosen, progress)


def _keys(path: Path) -> Halves:
    keys: Halves = np.load(path, mmap_mode="r")
    return keys
