"""A writer whose commits a test can delay and count."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from service.core.bundle.bundle import Bundle
from service.core.encoding.representer import Representer
from service.core.label_log import LabelLog, open_log
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor, QueryCache
from service.core.types import NewLabel
from service.engine.loaded_bundle import LoadedBundle
from service.engine.writing.operations import Operation, PostLabels, RequestKey, WriteJob, Written
from service.engine.writing.writer import Writer
from service.telemetry import Telemetry
from tests.support.serving import wait_for
from tests.support.tiny.encoder import TrigramEncoder

AXE = NewLabel(id="axe", text="ice axe")


class Desk:
    """A writer with its log and memory; `hold` blocks further commits."""

    def __init__(self, bundle: Bundle, state: Path, *, waiting: int = 100, **limits: int):
        self.memory = KnowledgeMemory(bundle, MemoryLimits(**{"live_rows": 100, **limits}))
        self.log: LabelLog = open_log(state)
        self.commits = 0
        self.published = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._exclusive, self.log.exclusive = self.log.exclusive, self._counted
        encoder, cache = TrigramEncoder(), QueryCache(0)
        self.loaded = LoadedBundle(
            bundle=bundle,
            encoder=encoder,
            representer=Representer(encoder),
            cache=cache,
            predictor=Predictor(encoder, tau=0.1, cache=cache),
            memory=self.memory,
        )
        self.writer = Writer(
            log=self.log,
            loaded=self.loaded,
            telemetry=Telemetry(),
            queue_labels=waiting,
            published=self._count,
        )

    def _counted(self):
        self.commits += 1
        assert self.go_on.wait(60)
        return self._exclusive()

    def _count(self, _loaded: LoadedBundle) -> None:
        self.published += 1

    def submit(self, labels: Sequence[NewLabel], key: RequestKey | None = None) -> Future[Written]:
        return self.do(PostLabels(items=tuple(labels)), key)

    def do(self, operation: Operation, key: RequestKey | None = None) -> Future[Written]:
        return self.writer.submit(WriteJob(operation=operation, request=key))

    def hold(self) -> None:
        """Make the writer begin to commit a first label and pause there."""
        self.go_on.clear()
        self.first = self.submit([NewLabel(id="first", text="first")])
        wait_for(lambda: self.commits)

    def close(self) -> None:
        self.go_on.set()
        self.writer.close()
        self.log.close()


def statuses(written: Written) -> list[tuple[str, str]]:
    return [(label.id, label.status) for label in written.labels]
