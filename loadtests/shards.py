"""`python -m loadtests.shards`: compares a divided memory with one process, in one run.

Both servers run at the same time with one worker each, and take turns in each round. Figures are
medians over the rounds. CPU time is that of the worker and of the shards, without Ray's
own processes. Writes shards.json and shards.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

import numpy as np

from loadtests.harness import option, say
from loadtests.report import Row
from loadtests.resources import info_of, resident, shard_processes
from loadtests.versions import Labels, Queries, Rate, Seconds, TwoServers
from service.child_server import Server
from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.index.choose_ef import recall_per_query
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.index.frozen_segment import build_segment
from service.core.index.key_parts import KeyShare
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.shards import FoundRows, KeySearch, search_all
from service.core.types import Role

RECALLED = 1_000  # queries
BUILD_SECONDS = 7200.0  # for the graphs of all shards, at low priority
READY_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Shards(TwoServers):
    """One process and several shards of the same bundle.

    If the bundle is in parts, one process searches all of them.
    """

    title = "Shards against one process"

    shards: int = option("Number of shards, one replica each.", 3)
    queries: Queries = 300
    labels: Labels = 30
    seconds: Seconds = 6.0
    rate: Rate = 40.0
    unseen: Path | None = option(
        "A file of queries for the recall; default: texts of the bundle, which are easier.", None
    )

    def rows(self) -> Iterator[Row]:
        """Compare both servers, then the recall of their searches."""
        one_worker, count = ("--workers", "1"), ("--shards", str(self.shards))
        with (
            self.server(*one_worker) as whole,
            self.server(*one_worker, *count, ready_seconds=READY_SECONDS) as divided,
        ):
            _wait_until_built(divided)
            yield from self.compared(whole=whole, divided=divided)
            yield _memory_row(divided)
        texts = list(islice(self.texts(self.unseen), RECALLED))
        yield from recall_rows(self.bundle, texts, self.shards)


def recall_rows(bundle: Path, texts: Sequence[str], shards: int) -> Iterator[Row]:
    """Measure the recall of one process and of shards.

    Unless the bundle is in parts, the shards' graphs are built in this process.
    """
    whole, memories = KnowledgeMemory(open_bundle(bundle)), []
    facts = whole.view.bundle.manifest
    with TemporaryDirectory(prefix="keymatch-shards-") as folder:
        for index in range(shards):
            share = KeyShare(index=index, count=shards)
            memory = KnowledgeMemory(whole.view.bundle, share=share)
            plan = memory.view.unbuilt_base_plan()
            if plan is not None:
                path, vectors = Path(folder, f"{index}.index"), memory.view.vectors(plan.rows)
                segment = build_segment(vectors, facts.index.parameters(), path, lambda rows: None)
                memory.attach_base(plan, segment)
            memories.append(memory)
        search_in_one_thread()
        queries = encode(OnnxEncoder(bundle, facts.encoder), texts, role=Role.QUERY)
        asked = 0

        def ask(wanted: KeySearch) -> list[FoundRows]:
            nonlocal asked
            asked += len(wanted.queries)
            return [memory.view.answer(wanted) for memory in memories]

        view, depth = whole.view, facts.predictor.depth
        exact = view.retrieve(queries, depth=depth, exact=True)
        for what, rows in (
            ("one process", view.retrieve(queries, depth=depth)[1]),
            (
                f"{shards} shards",
                search_all(view.key_search(queries, depth=depth), shards, ask).rows,
            ),
        ):
            recall = recall_per_query(
                queries=queries, retrieved=rows, exact=exact, vectors_of=view.vectors
            )
            measured = f"{np.mean(recall):.4f} of {len(texts):,} queries"
            yield Row(what=f"recall@{depth} of {what}", measured=measured)
    again = f"{asked / len(texts) - 1:.1%}"
    yield Row(what="queries that shards are asked twice", measured=again)


def _wait_until_built(server: Server) -> None:
    """Wait until the shards have built their graphs."""
    late = monotonic() + BUILD_SECONDS
    say("the shards build their graphs")
    while not all(shard and shard["built"] for shard in info_of(server.port)["shards"]):
        if monotonic() > late:
            raise TimeoutError(f"the graphs were not built within {BUILD_SECONDS:.0f} s")
        sleep(1.0)


def _memory_row(server: Server) -> Row:
    actors = map(resident, shard_processes(server.pid))
    each = ", ".join(f"{one.total:.0f} ({one.shared:.0f} mapped)" for one in actors)
    return Row(what="resident memory of each shard, MB", measured=each)


if __name__ == "__main__":
    Shards.command()
