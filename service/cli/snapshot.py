"""`python -m service snapshot`: a bundle and its label log as one new bundle."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress

from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_existing
from service.core.label_log import open_log
from service.core.memory.snapshot import write_snapshot
from service.core.processes.low_priority import lower_priority
from service.engine.loaded_bundle import load_bundle
from service.settings import STATE_VARIABLE, EngineSettings


def snapshot(
    *,
    bundle: Path,
    state: Annotated[str, Parameter(env_var=STATE_VARIABLE)],
    out: Path,
    until: int | None = None,
    nice: bool = False,
) -> int:
    """Write a new bundle that holds everything that a bundle and its label log hold.

    The service may run meanwhile; `POST /admin/snapshot` runs this command. Serve the new bundle
    with the same state: only events that it does not hold are replayed.

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
        Run at the lowest priority, so that the service is not slowed down.
    """
    if nice:
        lower_priority()
        parent = os.getppid()
    refuse_existing(out)
    label_log = open_log(state, create=False)
    try:
        loaded = load_bundle(bundle, label_log, EngineSettings(), until=until)
        view = loaded.memory.view
        if until is not None and view.version != until:
            raise InvalidInput(f"the log ends at event {view.version}", field="until")
        name, log_id = out.name, label_log.id
    finally:
        label_log.close()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("build the index", total=view.base_rows + view.live_rows)

        def progress(rows: int) -> None:
            bar.update(task, completed=rows)
            if nice and os.getppid() != parent:
                sys.exit("the service that asked for this snapshot is gone")

        write_snapshot(view, out, name=name, log=log_id, progress=progress)
    Console().print(
        f"{out}: version {view.version}, {len(view.labels):,} labels",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return 0
