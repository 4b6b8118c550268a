"""`python -m loadtests.training_speed`: our training loop against the plain one, in tokens/s.

The plain loop is what one writes first: fp32, each side of a batch tokenized and padded to its
longest text, one call of the encoder a side. Both take the same batches of the same recipe, turn by
turn in one run, with the same loss and optimizer. Padding is not counted. Writes
training_speed.json and training_speed.md.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from cyclopts import App
from rich.console import Console

from loadtests.measure.environment import environment
from loadtests.results.result_table import Report, Row
from service.command_line import run
from service.core.types import Role
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.loop.setup import open_run
from training.loop.trainer import Trainer
from training.recipes import recipe as recipes

GOAL = 2.0

app = App(name="loadtests.training_speed", help=__doc__)


@app.default
def training_speed(recipe: str, /, *, data: Path, out: Path, turns: int = 5, steps: int = 4) -> int:
    """Measure and report.

    Parameters
    ----------
    recipe
        A recipe's name or a .toml file; no validation, no refresh.
    data
        The data set's folder.
    out
        Folder for the results.
    turns
        Each loop's turns; the first of each warms up and is not counted.
    steps
        Steps of each turn.
    """
    console = Console(stderr=True, quiet=True)
    dataset = lf_xmc.read(data)
    still = ["validation.rows=0", "batch.hard_negatives=0", "refresh.every=0"]
    found: dict[str, list[float]] = {"plain": [], "ours": []}
    with tempfile.TemporaryDirectory() as folder:
        loops = {
            name: open_run(
                recipes.load(recipe, still),
                dataset,
                Path(folder) / name,
                source=recipe,
                resume=False,
                console=console,
            )
            for name in found
        }
        for turn in range(turns):
            for name, trainer in loops.items():
                tokens, seconds = 0, 0.0
                for number in range(turn * steps, (turn + 1) * steps):
                    tokens += batch_tokens(trainer, number)
                    start = perf_counter()
                    if name == "ours":
                        trainer._step(number)
                    else:
                        plain_step(trainer, dataset, number)
                    seconds += perf_counter() - start
                if turn:
                    found[name].append(tokens / seconds)
    speeds = {name: median(values) for name, values in found.items()}
    ratio = speeds["ours"] / speeds["plain"]
    report = Report(
        title="Training speed",
        settings={"recipe": recipe, "data": dataset.name, "turns": turns, "steps": steps},
        environment=environment(),
        rows=[
            Row(
                what="training, tokens/s over the plain fp32 loop",
                goal=f">= {GOAL:g}x",
                found=f"{ratio:.2f}x ({speeds['ours']:,.0f} against {speeds['plain']:,.0f})",
                met=ratio >= GOAL,
                figures={"ratio": ratio, **speeds},
            )
        ],
    )
    report.write(out, "training_speed")
    Console().print(report.table())
    return 0


def batch_tokens(trainer: Trainer, number: int) -> int:
    """Tokens of one batch, padding not counted."""
    return trainer.embedder.tokens(trainer._texts(trainer._batch(number)))


def plain_step(trainer: Trainer, dataset: Dataset, number: int) -> None:
    """One step of the plain loop over the same batch."""
    batch = trainer._batch(number)
    model = trainer.encoder.model
    sides: list[Any] = []
    for role, texts, places in (
        (Role.QUERY, dataset.train.instances.texts, batch.rows),
        (Role.LABEL, dataset.labels.texts, batch.pool),
    ):
        prompt = trainer.encoder.prompts[role]
        features = model.tokenizer(
            [prompt + texts[place] for place in places.tolist()],
            padding=True,
            truncation=True,
            max_length=model.max_seq_length,
            return_tensors="pt",
        )
        inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
        pooled = model(inputs)["sentence_embedding"]
        sides.append(torch.nn.functional.normalize(pooled, dim=-1))
    loss = trainer._loss_of(batch)(torch.cat(sides))
    loss.backward()
    parameters = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, trainer.recipe.optimizer.clip)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()


if __name__ == "__main__":
    np.seterr(all="raise")
    sys.exit(run(app))
