"""txtai's own API service over its own faiss index, set up as in its documentation.

The index is txtai's default for this many keys (IVF); its faiss settings offer no queue length for
HNSW. Without a `path` in its configuration, txtai keeps inserts in memory only. With one, every
upsert would write the whole index. All searches and upserts share txtai's lock.
"""

import json
import os
from pathlib import Path

from fastapi import FastAPI
from txtai.api import Extension
from txtai.api import application as api
from txtai.embeddings import Embeddings

from loadtests.opponents.servers.task import Task, model_folder, run

CONFIG = "api.json"  # txtai reads YAML, and JSON is valid YAML


def build(task: Task) -> None:
    """Index the keys; txtai reads their given vectors instead of encoding texts."""
    vectors = task.vectors()
    embeddings = Embeddings(method="external", transform=_unused, backend="faiss")
    embeddings.index((str(row), vector, None) for row, vector in enumerate(vectors))
    embeddings.save(str(task.store / "index"))
    config = {"writable": True, "embeddings": {"path": model_folder()}}
    (task.store / CONFIG).write_text(json.dumps(config))


def _unused(texts: list[str]) -> None:
    raise RuntimeError("the keys are given as vectors")


class LoadStore(Extension):
    """An extension of txtai's API that opens the stored index when the service starts."""

    def __call__(self, app: FastAPI) -> None:
        store = Path(os.environ["CONFIG"]).parent / "index"
        encoder = {"path": model_folder(), "method": "transformers"}
        api.get().embeddings.load(str(store), config=encoder)

        @app.get("/health/ready")
        def ready() -> dict[str, str]:
            return {"status": "ready"}


def application(task: Task) -> FastAPI:
    """txtai's application, which reads its configuration from the environment."""
    os.environ["CONFIG"] = str(task.store / CONFIG)
    os.environ["EXTENSIONS"] = f"{__spec__.name}.LoadStore"
    return api.app


if __name__ == "__main__":
    run(build, application)
