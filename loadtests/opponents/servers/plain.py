"""The plain stack: FastAPI, sentence-transformers and a faiss HNSW index behind a lock.

It returns the nearest keys without votes, and keeps inserts in memory only. That is less work than
Keymatch does for the same request.
"""

import json
from threading import Lock
from typing import Any

import faiss
from fastapi import FastAPI

from loadtests.opponents.servers.task import Labels, Queries, Task, load_encoder, run

INDEX, IDS = "hnsw.index", "ids.json"


def build(task: Task) -> None:
    """Index the keys."""
    vectors = task.vectors()
    index = faiss.IndexHNSWFlat(vectors.shape[1], task.graph.m, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = task.graph.ef_construction
    index.add(vectors)
    faiss.write_index(index, str(task.store / INDEX))
    (task.store / IDS).write_text(json.dumps([str(row) for row in range(len(vectors))]))


def application(task: Task) -> FastAPI:
    """An application with two endpoints, which run in FastAPI's thread pool."""
    # Requests run in parallel threads; with more torch threads each, they would compete for cores.
    encoder, lock = load_encoder(threads=1), Lock()
    index = faiss.read_index(str(task.store / INDEX))
    index.hnsw.efSearch = task.graph.ef
    faiss.omp_set_num_threads(1)
    ids: list[str] = json.loads((task.store / IDS).read_bytes())
    app = FastAPI()

    @app.get("/health/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/predict")
    def predict(body: Queries) -> dict[str, Any]:
        vectors = encoder.encode(body.queries, normalize_embeddings=True)
        with lock:
            similarities, rows = index.search(vectors, body.top_k)
        results = [
            [
                {"id": ids[row], "score": float(score)}
                for row, score in zip(nearest, scores, strict=True)
            ]
            for nearest, scores in zip(rows, similarities, strict=True)
        ]
        return {"results": results}

    @app.post("/labels")
    def insert(body: Labels) -> dict[str, int]:
        vectors = encoder.encode([label.text for label in body.labels], normalize_embeddings=True)
        with lock:
            ids.extend(label.id for label in body.labels)
            index.add(vectors)
        return {"created": len(body.labels)}

    return app


if __name__ == "__main__":
    run(build, application)
