"""The plain stack: FastAPI, sentence-transformers and a faiss HNSW index behind a lock.

It returns the nearest keys without votes, and keeps inserts in memory only. That is less work than
Keymatch does for the same request.
"""

from threading import Lock

import faiss
import numpy as np
from fastapi import FastAPI

from loadtests.opponents.servers.task import Nearest, Task, encoding_service, run

INDEX = "hnsw.index"


def build(task: Task) -> None:
    """Index the keys."""
    vectors = task.vectors()
    index = faiss.IndexHNSWFlat(vectors.shape[1], task.m, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = task.ef_construction
    index.add(vectors)
    faiss.write_index(index, str(task.store / INDEX))


def application(task: Task) -> FastAPI:
    """The service over the stored index."""
    lock, index = Lock(), faiss.read_index(str(task.store / INDEX))
    index.hnsw.efSearch = task.ef
    faiss.omp_set_num_threads(1)
    known = [str(row) for row in range(index.ntotal)]

    def nearest(vectors: np.ndarray, count: int) -> Nearest:
        with lock:
            similarities, rows = index.search(vectors, count)
        return [[known[row] for row in found] for found in rows], similarities

    def insert(ids: list[str], vectors: np.ndarray) -> None:
        with lock:
            known.extend(ids)
            index.add(vectors)

    return encoding_service(nearest, insert)


if __name__ == "__main__":
    run(build, application)
