"""A run's full state on disk, from which it goes on as if it had never stopped.

| file                      | content                                                        |
|---------------------------|----------------------------------------------------------------|
| `state.json`              | step, seconds, tokens, best score; of which run                |
| `weights.safetensors`     | the encoder's and the system's own parameters                  |
| `optimizer.safetensors`   | AdamW's moments, by the parameters' names                      |
| `mined.npy`               | hard negatives [N, top], where the run mines any               |
| `clusters.npy`, `ends.npy`| clusters one after the other, where batches follow them        |

Batches, draws and dropout are pure functions of seed and step (`order.py`), and so is the learning
rate: no generator's state has to be kept. The folder is replaced in one step.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from service.core.errors import InvalidData
from service.core.files.atomic import new_folder
from service.core.types import Rows
from training.batches.batch import Mined
from training.loop.optimizers import Optimizers

STATE = "state.json"


@dataclass(kw_only=True)
class Progress:
    """Where a run stands."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    best_score: float = -1.0
    best_step: int = -1
    best_mixing: float = 1.0
    checks_since_best: int = 0


@dataclass(kw_only=True, eq=False)
class Found:
    """What the last refresh found."""

    mined: Mined | None = None
    clusters: list[Rows] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Learned:
    """Weights and optimizers' moments by name, on the processor."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The trained modules by name and their optimizer."""

    modules: dict[str, nn.Module]
    optimizer: Optimizers

    def learned(self) -> Learned:
        """A copy of everything, tables that lie with several processes included.

        Every process must ask at once.
        """
        return Learned(
            weights={
                f"{name}/{key}": value.detach().cpu().clone().contiguous()
                for name, module in self.modules.items()
                for key, value in module.state_dict().items()
            },
            moments={
                f"{name}/{key}": torch.as_tensor(value).detach().cpu().contiguous()
                for name, entries in self.optimizer.moments().items()
                for key, value in entries.items()
            },
        )


def save(folder: Path, *, run: str, progress: Progress, found: Found, learned: Learned) -> None:
    """Write the state as `folder`; an older one stays until the new one is whole."""
    state = {"run": run, "progress": asdict(progress), "scalars": {}}
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    with new_folder(new) as partial:
        save_file(learned.weights, partial / "weights.safetensors")
        save_file(learned.moments, partial / "optimizer.safetensors")
        if found.mined is not None:
            np.save(partial / "mined.npy", found.mined)
        if found.clusters is not None:
            np.save(partial / "clusters.npy", np.concatenate(found.clusters))
            np.save(partial / "ends.npy", np.cumsum([len(one) for one in found.clusters]))
        (partial / STATE).write_bytes(orjson.dumps(state, option=orjson.OPT_INDENT_2))
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def newest(folder: Path) -> Path | None:
    """The folder that holds the newest whole state; None where there is none.

    A stop between two renames of `save` leaves the state under another name.
    """
    names = (
        folder,
        folder.with_name(f".{folder.name}.new"),
        folder.with_name(f".{folder.name}.old"),
    )
    return next((name for name in names if (name / STATE).is_file()), None)


def load(folder: Path, *, run: str, parts: Parts) -> tuple[Progress, Found]:
    """Put a state into modules and optimizer; raises `InvalidData` for another run's."""
    state = orjson.loads((folder / STATE).read_bytes())
    if state["run"] != run:
        raise InvalidData(
            folder / STATE, "belongs to a run with another recipe or other data; name a new --out"
        )
    weights = load_file(folder / "weights.safetensors")
    for name, module in parts.modules.items():
        own = {
            key.removeprefix(f"{name}/"): value
            for key, value in weights.items()
            if key.startswith(f"{name}/")
        }
        module.load_state_dict(own)
    _put_moments(parts, load_file(folder / "optimizer.safetensors"))
    mined, clusters = folder / "mined.npy", folder / "clusters.npy"
    found = Found(
        mined=np.load(mined) if mined.exists() else None,
        clusters=np.split(np.load(clusters), np.load(folder / "ends.npy")[:-1])
        if clusters.exists()
        else None,
    )
    return Progress(**state["progress"]), found


def _put_moments(parts: Parts, moments: dict[str, Tensor]) -> None:
    found: dict[str, dict[str, Any]] = {}
    for key, value in moments.items():
        name, entry = key.rsplit("/", 1)
        found.setdefault(name, {})[entry] = value
    parts.optimizer.put_moments(found)
