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
from chromadb.config import Settings
from fastapi import FastAPI

from loadtests.opponents.servers.task import HOST, Labels, Queries, Task, load_encoder, run

COLLECTION = "keys"
START_SECONDS = 60.0
QUIET = Settings(anonymized_telemetry=False)


def build(task: Task) -> None:
    """Write the keys into a collection on disk, in the largest batches that Chroma takes."""
    client = chromadb.PersistentClient(str(task.store), settings=QUIET)
    hnsw: dict[str, Any] = {
        "space": "ip",
        "max_neighbors": task.graph.m,
        "ef_construction": task.graph.ef_construction,
        "ef_search": task.graph.ef,
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
    encoder = load_encoder(threads=1)
    collection = _collection(task.store)
    app = FastAPI()

    @app.get("/health/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/predict")
    def predict(body: Queries) -> dict[str, Any]:
        vectors = encoder.encode(body.queries, normalize_embeddings=True)
        nearest = collection.query(
            query_embeddings=vectors, n_results=body.top_k, include=["distances"]
        )
        results = [
            [
                {"id": key, "score": 1 - distance}
                for key, distance in zip(ids, distances, strict=True)
            ]
            for ids, distances in zip(nearest["ids"], nearest["distances"], strict=True)
        ]
        return {"results": results}

    @app.post("/labels")
    def insert(body: Labels) -> dict[str, int]:
        texts = [label.text for label in body.labels]
        vectors = encoder.encode(texts, normalize_embeddings=True)
        collection.add([label.id for label in body.labels], embeddings=vectors)
        return {"created": len(texts)}

    return app


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
