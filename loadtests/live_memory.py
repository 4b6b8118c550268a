"""`python -m loadtests.live_memory`: what learning costs while the service answers.

Asks queries beside a steady flow of labels until two segments were sealed; quiet rounds alternate
with rounds that write, since the machine may be noisy. Then streams labels in bulk to another
server, deletes some, and holds the search of the grown memory against an exact one. Writes
live_memory.json and live_memory.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import orjson
from cyclopts import App
from rich.console import Console

from loadtests.clients.connection import Connection, delete, get, post, require, stream
from loadtests.clients.open_loop import Stream, drive, poisson_starts
from loadtests.measure.environment import environment
from loadtests.measure.latency_summary import Summary
from loadtests.measure.recall import measure_recall
from loadtests.measure.traffic import Load, WhileWriting
from loadtests.queries import distinct, read_queries
from loadtests.results import goals
from loadtests.results.result_table import Report, Row
from service.command_line import run
from service.core.encoding.encoder import encode
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.label_log import open_log
from service.core.memory.segment_store import SegmentStore
from service.core.memory.view import View
from service.core.types import Role
from service.engine.loaded_bundle import open_serving
from service.settings import EngineSettings
from training.experiments.service_process import Server, running_server

BULK = 800.0  # labels a second
SEALS = 2  # that the rounds must span
ROUND_SECONDS = 15.0
SPARE_ROWS = 2_000  # left free in the block before the rounds
LONGEST_SECONDS = 900.0  # for the rounds and for the sealing to come to rest

app = App(name="loadtests.live_memory", help=__doc__)


@app.default
def live_memory(
    *,
    bundle: Path,
    out: Path,
    inserts: int = 50_000,
    deletes: int = 10_000,
    rate: float = 100.0,
    label_rate: float = 200.0,
    batch: int = 10,
    unseen: Path | None = None,
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        The bundle's folder.
    out
        Folder for live_memory.json and live_memory.md.
    inserts
        Labels that are streamed as NDJSON.
    deletes
        Of these, how many are deleted again.
    rate
        Predictions a second beside the steady flow.
    label_rate
        Labels a second of the steady flow.
    batch
        Labels in each of its requests.
    unseen
        Queries for the recall, see loadtests.latency.
    seed
        Draws queries, labels and arrivals.
    """
    console, rows = Console(stderr=True), []
    texts = distinct(read_queries(bundle), seed=seed)
    with running_server(bundle, options=["--no-access-log"]) as server:
        console.print("queries beside a steady flow of labels, until two seals ...")
        load = Load(rate=rate, label_rate=label_rate, seconds=ROUND_SECONDS, seed=seed)
        mixed, seals = across_seals(server, texts, load, batch=batch)
        what = (
            f"/predict while {label_rate:g} labels/s are posted, {batch} a request, {seals} seals"
        )
        rows.append(goals.while_writing_row(what, mixed))
    with running_server(bundle, options=["--no-access-log"]) as server:
        console.print("bulk: a stream of labels, then deletions ...")
        rows.append(bulk_row(server, labels(texts, "bulk", inserts)))
        rows.append(delete_row(server, [f"bulk-{number}" for number in range(deletes)]))
        settle(server)
        console.print("recall of the grown memory ...")
        asked = list(islice(distinct(read_queries(bundle, unseen), seed=seed), 500))
        rows.append(recall_row(bundle, server.state, asked))
        rows.append(goals.resident_row(server))
    report = Report(
        title="The live memory",
        settings={"inserts": inserts, "deletes": deletes, "rate": rate, "bundle": bundle.name},
        environment=environment(),
        rows=rows,
    )
    report.write(out, "live_memory")
    Console().print(report.table())
    return 0


def labels(texts: Iterator[str], prefix: str, count: int) -> list[dict[str, Any]]:
    """New labels, two texts of the data set each: like it, and unlike each other."""
    return [
        {"id": f"{prefix}-{number}", "text": f"{next(texts)} {next(texts)}"}
        for number in range(count)
    ]


def bulk_row(server: Server, posted: Sequence[dict[str, Any]]) -> Row:
    """One NDJSON request with all labels, sent whole before its answer is read."""
    connection = Connection(server.port)
    start = perf_counter()
    connection.send(stream("/labels", b"".join(orjson.dumps(one) + b"\n" for one in posted)))
    answers = connection.receive_stream()
    seconds = perf_counter() - start
    connection.close()
    created = sum(orjson.loads(line).get("status") == "created" for line in answers)
    return Row(
        what=f"bulk NDJSON, {len(posted):,} labels, each synced and visible",
        goal=f">= {BULK:g} labels/s",
        found=f"{created / seconds:.0f} labels/s ({created:,} created in {seconds:.0f} s)",
        met=created == len(posted) and created / seconds >= BULK,
        figures={"seconds": seconds, "created": created},
    )


def delete_row(server: Server, ids: Sequence[str]) -> Row:
    """Delete labels one after the other."""
    connection, seconds = Connection(server.port), []
    for label_id in ids:
        start = perf_counter()
        require(connection.ask(delete(f"/labels/{label_id}")))
        seconds.append(perf_counter() - start)
    connection.close()
    found = Summary.of(seconds)
    return Row(what="DELETE /labels/{id}", goal="-", found=str(found), figures=found.as_document())


def settle(server: Server) -> None:
    """Wait until all that is to be sealed is sealed."""
    connection = Connection(server.port)
    deadline = perf_counter() + LONGEST_SECONDS
    while require(connection.ask(get("/info")))["memory"]["unsealed_segments"]:
        if perf_counter() > deadline:
            raise TimeoutError("the memory does not come to rest")
        sleep(0.5)
    connection.close()


def recall_row(bundle: Path, state: Path, queries: list[str]) -> Row:
    """The same memory, opened here from its log and its segments, against an exact scan."""
    search_in_one_thread()
    label_log = open_log(state, create=False)
    serving = open_serving(bundle, label_log, EngineSettings())
    label_log.close()
    attach_all(serving.memory, SegmentStore(state / "segments"))
    view = serving.memory.view
    vectors = encode(serving.encoder, queries, role=Role.QUERY)
    found = measure_recall(view, vectors, depth=bundle_depth(view))
    return Row(
        what=f"recall@{found.depth} with {view.live_rows:,} live rows ({view.sealed_rows:,} of them"
        f" sealed) and {view.dead_rows:,} dead ones",
        goal=f">= {goals.RECALL:g}",
        found=f"{found.mean:.4f} (worst query {found.worst:.3f}; {found.queries:,} queries)",
        met=found.mean >= goals.RECALL,
        figures={"mean": found.mean, "worst": found.worst},
    )


def attach_all(memory: Any, store: SegmentStore) -> None:
    """Put every segment that the server built in its place."""
    view = memory.view
    parameters = view.bundle.manifest.index.parameters()
    for plan in list(view.unsealed_plans()):
        vectors = view.vectors(plan.rows)
        segment = store.find(store.key(vectors, parameters), parameters, shape=vectors.shape)
        if segment is None:
            raise LookupError("the server has not built a segment that its log asks for")
        memory.attach(plan, segment)


def bundle_depth(view: View) -> int:
    """The bundle's b."""
    return view.bundle.manifest.predictor.depth


def across_seals(
    server: Server, texts: Iterator[str], load: Load, *, batch: int
) -> tuple[WhileWriting, int]:
    """Quiet and writing rounds by turns, until enough segments were sealed meanwhile.

    Before each a block is nearly filled, so that a seal comes within a few rounds.
    """
    quiet: list[float] = []
    writing: list[float] = []
    posted: list[float] = []
    failures: dict[str, int] = {}
    filled, turn, deadline = -1, 0, perf_counter() + LONGEST_SECONDS
    while (seals := sealed(server)) < SEALS and perf_counter() < deadline:
        if seals > filled:
            fill(server, texts, prefix=f"fill-{turn}")
            filled = seals
        streams = [load.stream(texts, seconds=load.seconds, seed=turn)]
        if turn % 2:
            starts = poisson_starts(
                rate=load.label_rate / batch, seconds=load.seconds, seed=load.seed + 1_000 + turn
            )
            flow = labels(texts, f"flow-{turn}", batch * len(starts))
            requests = [
                post("/labels", {"labels": flow[i : i + batch]}) for i in range(0, len(flow), batch)
            ]
            streams.append(Stream(name="labels", requests=requests, starts=starts))
        outcomes = drive(server.port, streams)
        (writing if turn % 2 else quiet).extend(outcomes["predict"].latencies)
        if turn % 2:
            posted += outcomes["labels"].latencies
        for outcome in outcomes.values():
            for reason, count in outcome.failures.items():
                failures[reason] = failures.get(reason, 0) + count
        turn += 1
    found = WhileWriting(quiet=quiet, writing=writing, labels=posted, failures=failures)
    return found, sealed(server)


def fill(server: Server, texts: Iterator[str], *, prefix: str) -> None:
    """Fill the block of live rows, but for what a few seconds of the flow bring."""
    connection = Connection(server.port)
    stored = require(connection.ask(get("/info")))["memory"]["live_rows"]
    connection.close()
    size = EngineSettings().seal_rows
    bulk_row(server, labels(texts, prefix, max(0, size - stored % size - SPARE_ROWS)))


def sealed(server: Server) -> int:
    """How many segments the server has sealed."""
    connection = Connection(server.port)
    status, body = connection.ask(get("/metrics"))
    connection.close()
    assert status == 200
    name = b"keymatch_seal_seconds_count "
    line = next(line for line in body.splitlines() if line.startswith(name))
    return int(float(line.split()[1]))


if __name__ == "__main__":
    sys.exit(run(app))
