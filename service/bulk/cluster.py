"""Answers the parts of a file on a Ray cluster, with the same bytes as `BulkRun.answer`.

The command reads the file and sends each part's queries to a worker process. A worker opens the
bundle once, and writes its parts into the work folder, which all machines must share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from service.bulk.formats import format_of
from service.bulk.memory import LogPlace, open_memory
from service.bulk.progress import Report
from service.bulk.query_file import FileQuery
from service.bulk.run import BulkRun, Job, WorkFolder, answered_part
from service.core.bundle import manifest
from service.core.bundle.object_store import is_url, local_bundle
from service.core.errors import InvalidConfig, InvalidInput
from service.core.processes.ray_cluster import Cluster, machines
from service.core.types import PredictOptions
from service.core.work_parts import unshared, wait_until_seen
from service.engine.loaded_bundle import LoadedBundle
from service.settings import EngineSettings


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory that workers open: a bundle's folder or URL, a log, and the last event."""

    bundle: str
    cache: Path
    log: LogPlace | None
    settings: EngineSettings
    version: int
    fingerprint: str

    @classmethod
    def of(
        cls, bundle: str, cache: Path, log: LogPlace | None, settings: EngineSettings, job: Job
    ) -> Memory:
        """Return the memory from which a job is answered; relative paths are this process's."""
        if log is not None and isinstance(log.state, Path):
            log = replace(log, state=log.state.absolute())
        return cls(
            bundle=bundle if is_url(bundle) else str(Path(bundle).absolute()),
            cache=cache,
            log=log,
            settings=replace(settings, threads=1),
            version=job.version,
            fingerprint=job.bundle,
        )


def require_answerable(settings: EngineSettings, state: str | None) -> None:
    """Raise `InvalidInput` if this process's cluster cannot answer with these settings."""
    if settings.device != "cpu":
        raise InvalidInput("--cluster answers with CPUs: use device cpu", field="cluster")
    count = machines()
    if state is not None and "://" not in state and count > 1:
        raise InvalidConfig(
            f"the cluster has {count} machines, and a label log in a folder is for one: use"
            " --state postgresql://..."
        )


def answer_on(
    cluster: Cluster, run: BulkRun, memory: Memory, folder: WorkFolder, progress: Report
) -> None:
    """Answer the parts missing in `folder`; after an interrupt, finished parts are kept.

    Raises `InvalidData` if the file has changed meanwhile, and as `Cluster.results`.
    """
    calls = (
        (memory, run.job, run.options, folder.out, number, part)
        for number, part in run.missing(folder)
    )
    for number, name, rows in cluster.results(answer_part, calls):
        wait_until_seen((folder.folder / name).exists, folder.folder)
        folder.add(number, folder.folder / name)
        progress(rows)


def answer_part(
    memory: Memory,
    job: Job,
    options: PredictOptions,
    out: Path,
    number: int,
    part: list[FileQuery],
) -> tuple[int, str, int]:
    """Answer a part and write it; returns its number, its file's name, and its number of rows."""
    folder = WorkFolder(out).of_job(job)
    if not folder.folder.is_dir():
        raise unshared(folder.folder)
    form = format_of(out, explain=job.explain, escape_formulas=job.escape_formulas)
    content = form.part(answered_part(_opened(memory), job, options, number, part))
    return number, folder.write(number, content).name, len(part)


@lru_cache(maxsize=1)
def _opened(memory: Memory) -> LoadedBundle:
    """Open a memory once per worker process, because this takes longer than a part."""
    bundle = local_bundle(memory.bundle, memory.cache)
    if manifest.fingerprint(manifest.read(bundle)) != memory.fingerprint:
        raise InvalidConfig(f"{bundle} is another bundle on a machine of the cluster")
    return open_memory(bundle, memory.log, memory.settings, until=memory.version)
