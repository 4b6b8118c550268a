"""`python -m service snapshot`: a bundle and its label log as one new bundle."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.progress import Progress

from service.command_line import open_console
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_existing, refuse_unwritable
from service.core.label_log import open_log
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.processes.low_priority import lower_priority
from service.engine.loaded_bundle import load_bundle
from service.engine.snapshot_file import SnapshotFile, SnapshotProgress
from service.settings import STATE_VARIABLE, EngineSettings

Report = Callable[[int], None]  # is called with the number of indexed rows


def snapshot(
    *,
    bundle: Path,
    state: Annotated[str, Parameter(env_var=STATE_VARIABLE)],
    out: Path,
    until: int | None = None,
    nice: bool = False,
    niceness: int | None = None,
    progress: Path | None = None,
    other_data: bool = False,
) -> int:
    """Write a new bundle that holds everything that a bundle and its label log hold.

    The service may run meanwhile; `POST /admin/snapshot` runs this command. Serve the new bundle
    with the same state: only events that it does not hold are replayed. Only one snapshot at a time
    is written to a folder.

    Parameters
    ----------
    bundle
        The folder of the bundle that is served.
    state
        The folder or the PostgreSQL URL of the label log.
    out
        The new bundle's folder; must not exist.
    until
        The last event to include; default: the newest.
    nice
        Run at the lowest priority; on a busy machine this may take very long.
    niceness
        Add so much to the niceness, which keeps a share of a busy processor (8: about 15 %).
    progress
        The file in which the service that runs this keeps the progress; end when it is removed.
    other_data
        Take a label log that was begun for other data than the bundle's.
    """
    if nice:
        lower_priority()
    elif niceness is not None:
        os.nice(niceness)
    parent = os.getppid()
    refuse_existing(out)
    refuse_unwritable(out)
    # The service that runs this holds the lock already.
    with SnapshotFile(out.parent).only_one() if progress is None else nullcontext():
        view, log_id, chain = _view(bundle, state, until=until, other_data=other_data)
        with _reporting(view, out.name, progress) as report:

            def report_to_parent(rows: int) -> None:
                if progress is not None and os.getppid() != parent:
                    sys.exit("the service that asked for this snapshot is gone")
                report(rows)

            write_snapshot(
                view, out, name=out.name, log=log_id, log_chain=chain, progress=report_to_parent
            )
    said = f"{out}: version {view.version}, {len(view.labels):,} labels"
    open_console().print(said, soft_wrap=True)
    return 0


def _view(
    bundle: Path, state: str, *, until: int | None, other_data: bool
) -> tuple[View, str, str]:
    """The memory up to event `until`, the id of its log, and the chain there, hexadecimal."""
    settings = EngineSettings(other_data=other_data)
    with closing(open_log(state, create=False)) as label_log:
        view = load_bundle(bundle, label_log, settings, until=until).memory.view
        if until is not None and view.version != until:
            raise InvalidInput(f"the log ends at event {view.version}", field="until")
        return view, label_log.id, label_log.link_at(view.version).chain.hex()


@contextmanager
def _reporting(view: View, name: str, file: Path | None) -> Iterator[Report]:
    """Yield what shows the number of indexed rows: in the service's file, or on the terminal."""
    total = len(view.alive_rows())
    if file is not None:
        kept = SnapshotFile(file.parent)
        begun = SnapshotProgress(bundle=name, version=view.version)
        begun = replace(kept.read() or begun, stage="index", of_rows=total)

        def update(rows: int) -> None:
            kept.update(replace(begun, rows=rows, stage="index" if rows < total else "write"))

        update(0)
        yield update
        return
    console = open_console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("build the index", total=total)
        yield lambda rows: bar.update(task, completed=rows)
