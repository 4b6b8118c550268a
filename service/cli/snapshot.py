"""`keymatch snapshot`: merge a bundle and its label log into one new bundle."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.progress import Progress

from service.command_line import DEFAULT_CACHE, STATE_VARIABLE, CacheOption, open_console, say
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_unusable
from service.core.processes.low_priority import lower_priority, wake_when_orphaned
from service.core.tenant import Tenant
from service.engine.snapshot_file import SnapshotFile, SnapshotProgress

if TYPE_CHECKING:
    from service.core.memory.view import View

Report = Callable[[int], None]  # takes the number of indexed rows


def snapshot(
    *,
    bundle: str,
    state: Annotated[str, Parameter(env_var=STATE_VARIABLE)],
    out: str,
    until: int | None = None,
    tenant: str | None = None,
    nice: bool = False,
    niceness: int | None = None,
    progress: Path | None = None,
    other_data: bool = False,
    cache: CacheOption = DEFAULT_CACHE,
) -> int:
    """Write a new bundle that holds all of a bundle and its label log.

    The service may run meanwhile; `POST /admin/snapshot` runs this command. Serve the new bundle
    with the same state: only events that it does not hold are replayed. Only one snapshot at a time
    is written to a folder.

    Parameters
    ----------
    bundle
        The folder or URL of the served bundle.
    state
        The folder or the PostgreSQL URL of the label log.
    out
        The new bundle's folder or URL; it must not exist yet. At a URL, the bundle appears once all
        of its files are there.
    until
        The last event to include; default: the newest.
    tenant
        FIELD=VALUE: write this tenant's labels, clicks and rules alone, under the tenant's ids.
        Serve the new bundle with a new state, since this log holds the writes of all tenants.
    nice
        Run at the lowest priority; on a busy machine this may take very long.
    niceness
        Add this to the niceness, which leaves a share of a busy core (8: about 15 %).
    progress
        The file in which the calling service keeps the progress; removing it cancels the snapshot.
    other_data
        Accept a label log that was begun for other data than the bundle's.
    cache
        Folder for copies of bundles that URLs name, and for a snapshot until it is pushed.
    """
    from service.core.bundle import manifest
    from service.core.bundle.object_store import (
        BundleCache,
        checked_url,
        exists,
        is_url,
        local_bundle,
        push,
    )
    from service.core.memory.snapshot import write_snapshot

    if nice:
        lower_priority()
    elif niceness is not None:
        os.nice(niceness)
    parent = os.getppid()
    if progress is not None:
        wake_when_orphaned()
    url, kept = checked_url(out) if is_url(out) else "", BundleCache(cache)
    target = kept.snapshots / PurePosixPath(url).name if url else Path(out)
    if url and exists(url):
        raise InvalidInput(f"{url} exists already: name another URL", field="out")
    if not url:
        refuse_unusable(target)
    # With `progress`, the calling service holds the lock already.
    lock = SnapshotFile(target.parent).only_one() if progress is None else nullcontext()
    with lock, ExitStack() as finally_:
        if url:
            _remove_unpushed(kept.snapshots)  # of a killed process
            finally_.callback(_remove_unpushed, kept.snapshots)
            refuse_unusable(target)
        folder = local_bundle(bundle, cache)
        view, log_id, chain = _view(
            folder, state, until=until, tenant=tenant, other_data=other_data
        )
        with _reporting(view, target.name, progress) as report:

            def report_to_parent(rows: int) -> None:
                if progress is not None and os.getppid() != parent:
                    sys.exit("the service that asked for this snapshot is gone")
                report(rows)

            write_snapshot(
                *(view, target),
                name=target.name,
                log=log_id,
                log_chain=chain,
                progress=report_to_parent,
            )
            index = manifest.read(target).index
            if url:
                rows = len(view.alive_rows())
                push(target, url, goes_on=lambda: report_to_parent(rows))
                kept.keep(target, url)
    say(f"{out}: version {view.version}, {len(view.labels):,} labels; {index}")
    return 0


def _remove_unpushed(folder: Path) -> None:
    for snapshot in folder.glob("[!.]*"):
        shutil.rmtree(snapshot, ignore_errors=True)


def _view(
    bundle: Path, state: str, *, until: int | None, tenant: str | None, other_data: bool
) -> tuple[View, str, str]:
    """Return the memory up to event `until`, the log's id, and that event's chain hash in hex.

    A tenant's part belongs to no log: both are empty, and its version is 0.
    """
    from service.core.label_log import open_log
    from service.engine.loaded_bundle import load_bundle
    from service.settings import EngineSettings

    settings = EngineSettings(other_data=other_data)
    own = None if tenant is None else Tenant.parse(tenant)
    with closing(open_log(state, create=False)) as label_log:
        memory = load_bundle(bundle, label_log, settings, until=until).memory
        view = memory.view
        if until is not None and view.version != until:
            raise InvalidInput(f"the log ends at event {view.version}", field="until")
        if own is not None:
            return replace(memory.of_tenant(view, own), version=0), "", ""
        return view, label_log.id, label_log.link_at(view.version).chain.hex()


@contextmanager
def _reporting(view: View, name: str, file: Path | None) -> Iterator[Report]:
    """Yield a function that reports indexed rows in the service's file or on the terminal."""
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
