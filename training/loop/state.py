"""A run's saved state, from which the run continues as if it had never stopped.

| file                      | content                                                         |
|---------------------------|-----------------------------------------------------------------|
| `state.json`              | step, seconds, tokens, best score; the run's identity           |
| `weights.safetensors`     | parameters of the encoder (`encoder/`) and of the head (`own/`) |
| `optimizer.safetensors`   | the optimizers' moments, by the parameters' names               |
| `mined.npy`               | hard negatives [N, top], if the run mines any                   |
| `clusters.npy`, `ends.npy`| clusters in one array and their ends, if batches follow them    |

Batches, samples and dropout are pure functions of seed and step (`training.batches.order`), and so
is the learning rate: no random state is saved. The folder is replaced in one step.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import orjson
from safetensors.torch import load_file, save_file

from service.core.errors import InvalidData
from service.core.files.atomic import new_folder, writing
from training.checkpoints.run_json import STATE
from training.loop.batch_source import Neighbourhoods
from training.loop.model import TrainedModel, TrainedState

WEIGHTS, MOMENTS = "weights.safetensors", "optimizer.safetensors"
HARD_NEGATIVES, CLUSTERS, ENDS = "mined.npy", "clusters.npy", "ends.npy"


@dataclass(kw_only=True)
class Progress:
    """How far a run is, and its best validation so far."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    best_score: float = -1.0
    best_step: int = -1
    best_mixing: float = 1.0
    checks_since_best: int = 0


def save(
    folder: Path,
    *,
    run: str,
    progress: Progress,
    neighbourhoods: Neighbourhoods,
    trained: TrainedState,
) -> None:
    """Write the state to `folder`; the old state is kept until the new one is complete."""
    state = {"run": run, "progress": asdict(progress), "scalars": {}}
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    with writing(folder, new), new_folder(new) as partial:
        save_file(trained.weights, partial / WEIGHTS)
        save_file(trained.moments, partial / MOMENTS)
        _write_neighbourhoods(partial, neighbourhoods)
        (partial / STATE).write_bytes(orjson.dumps(state, option=orjson.OPT_INDENT_2))
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def load(folder: Path, *, run: str, model: TrainedModel) -> tuple[Progress, Neighbourhoods]:
    """Load a state into the model; raises `InvalidData` if it belongs to another run."""
    state = orjson.loads((folder / STATE).read_bytes())
    if state["run"] != run:
        raise InvalidData(
            folder / STATE, "belongs to a run with another recipe or other data; change --out"
        )
    weights, moments = load_file(folder / WEIGHTS), load_file(folder / MOMENTS)
    model.load_state(TrainedState(weights=weights, moments=moments))
    return Progress(**state["progress"]), _read_neighbourhoods(folder)


def _write_neighbourhoods(folder: Path, neighbourhoods: Neighbourhoods) -> None:
    clusters = neighbourhoods.clusters
    if neighbourhoods.hard_negatives is not None:
        np.save(folder / HARD_NEGATIVES, neighbourhoods.hard_negatives)
    if clusters is not None:
        np.save(folder / CLUSTERS, np.concatenate(clusters))
        np.save(folder / ENDS, np.cumsum([len(cluster) for cluster in clusters]))


def _read_neighbourhoods(folder: Path) -> Neighbourhoods:
    hard_negatives, clusters = folder / HARD_NEGATIVES, folder / CLUSTERS
    return Neighbourhoods(
        hard_negatives=np.load(hard_negatives) if hard_negatives.exists() else None,
        clusters=np.split(np.load(clusters), np.load(folder / ENDS)[:-1])
        if clusters.exists()
        else None,
    )
