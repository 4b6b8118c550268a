"""Chroma as its own server process, behind a thin FastAPI service that encodes queries.

Inserts are durable when they are answered. The endpoints are the same as in the plain stack.
"""

import atexit
import socket
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import chromadb
import numpy as np
from chromadb.config import Settings
from fastapi import FastAPI

from loadtests.opponents.servers.task import HOST, Nearest, Task, encoding_service, run

COLLECTION = "keys"
START_SECONDS = 60.0
QUIET = Settings(anonymized_telemetry=False)


def build(task: Task) -> None:
    """Write the keys into a collection on disk, in the largest batches that Chroma takes."""
    client = chromadb.PersistentClient(str(task.store), settings=QUIET)
    hnsw: dict[str, Any] = {
        "space": "ip",
        "max_neighbors": task.m,
        "ef_construction": task.ef_construction,
        "ef_search": task.ef,
    }
    collection = client.create_collection(
        COLLECTION, configuration={"hnsw": hnsw}, embedding_function=None
    )
    vectors, batch = task.vectors(), client.get_max_batch_size()
    for start in range(0, len(vectors), batch):
        rows = range(start, min(start + batch, len(vectors)))
        collection.add([str(row) for row in rows], embeddings=vectors[start : start + batch])
    # The first query makes Chroma index the entries that are still in its log only.
    collection.query(query_embeddings=vectors[:1], n_results=1, include=["distances"])


def application(task: Task) -> FastAPI:
    """The service that encodes queries; Chroma's own server runs as a child process."""
    collection = _collection(task.store)

    def nearest(vectors: np.ndarray, count: int) -> Nearest:
        found = collection.query(query_embeddings=vectors, n_results=count, include=["distances"])
        return found["ids"], [[1 - distance for distance in one] for one in found["distances"]]

    def insert(ids: list[str], vectors: np.ndarray) -> None:
        collection.add(ids, embeddings=vectors)

    return encoding_service(nearest, insert)


def _collection(store: Path) -> chromadb.Collection:
    """Start Chroma's server on a free port, and connect to the collection once it answers."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    chroma = str(Path(sys.executable).with_name("chroma"))
    command = [chroma, "run", "--path", str(store), "--host", HOST, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    atexit.register(process.terminate)
    deadline = monotonic() + START_SECONDS
    while True:
        try:
            client = chromadb.HttpClient(HOST, port, settings=QUIET)
            return client.get_collection(COLLECTION, embedding_function=None)
        except Exception:  # the client raises no specific class for a refused connection
            if process.poll() is not None or monotonic() > deadline:
                raise
            sleep(0.1)


if __name__ == "__main__":
    run(build, application)
