"""`python -m loadtests.parts.training_speed`: tokens a second of our training loop and a plain one.

The plain loop is the straightforward one: fp32, queries and labels each tokenized, padded to the
longest text and encoded in one call. Both loops train on the same batches of the same recipe, with
the same loss and optimizer, in alternating turns of one run. Padding is not counted. Writes
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

from loadtests.measure.environment import environment
from loadtests.results.result_table import Report, Row
from service.command_line import open_console, run
from service.core.types import Role
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.loop.setup import open_run
from training.loop.trainer import Trainer
from training.recipes import recipe as recipes

GOAL = 2.0
PLAIN, OURS = "plain", "ours"

app = App(name="loadtests.parts.training_speed", help=__doc__)


@app.default
def training_speed(recipe: str, /, *, data: Path, out: Path, turns: int = 5, steps: int = 4) -> int:
    """Measure and report.

    Parameters
    ----------
    recipe
        A recipe's name or a .toml file; its validation, hard negatives and refreshes are off.
    data
        The data set's folder.
    out
        Folder for the results.
    turns
        Turns of each loop; the first one warms up and is not counted.
    steps
        Steps of each turn.
    """
    dataset = lf_xmc.read(data)
    with tempfile.TemporaryDirectory() as folder:
        trainers = {name: _open(recipe, dataset, Path(folder) / name) for name in (PLAIN, OURS)}
        speeds = measure(trainers, dataset, turns=turns, steps=steps)
    ratio = speeds[OURS] / speeds[PLAIN]
    row = Row(
        what="training, tokens/s over the plain fp32 loop",
        goal=f">= {GOAL:g}x",
        measured=f"{ratio:.2f}x ({speeds[OURS]:,.0f} against {speeds[PLAIN]:,.0f})",
        met=ratio >= GOAL,
        figures={"ratio": ratio, **speeds},
    )
    Report(
        title="Training speed",
        settings={"recipe": recipe, "data": dataset.name, "turns": turns, "steps": steps},
        environment=environment(),
        rows=[row],
    ).publish(out, "training_speed")
    return 0


def _open(recipe: str, dataset: Dataset, folder: Path) -> Trainer:
    only_steps = ["validation.rows=0", "batch.hard_negatives=0", "refresh.every=0"]
    return open_run(
        recipes.load(recipe, only_steps),
        dataset,
        folder,
        source=recipe,
        resume=False,
        console=open_console(stderr=True, quiet=True),
    )


def measure(
    trainers: dict[str, Trainer], dataset: Dataset, *, turns: int, steps: int
) -> dict[str, float]:
    """Median tokens a second of each loop over its turns; the loops alternate."""
    speeds: dict[str, list[float]] = {name: [] for name in trainers}
    for turn in range(turns):
        for name, trainer in trainers.items():
            tokens, seconds = 0, 0.0
            for number in range(turn * steps, (turn + 1) * steps):
                tokens += batch_tokens(trainer, number)
                start = perf_counter()
                if name == OURS:
                    trainer.take_step(number)
                else:
                    plain_step(trainer, dataset, number)
                seconds += perf_counter() - start
            if turn:
                speeds[name].append(tokens / seconds)
    return {name: median(values) for name, values in speeds.items()}


def batch_tokens(trainer: Trainer, number: int) -> int:
    """Tokens of one batch, without padding."""
    model = trainer.model
    return model.embedder.tokens(model.texts_of(trainer.batches.batch(number)))


def plain_step(trainer: Trainer, dataset: Dataset, number: int) -> None:
    """One step of the plain loop, on the batch that our loop takes at step `number`."""
    batch = trainer.batches.batch(number)
    model = trainer.model.encoder.model
    encoded: list[Any] = []  # queries, then labels
    for role, texts, places in (
        (Role.QUERY, dataset.train.instances.texts, batch.rows),
        (Role.LABEL, dataset.labels.texts, batch.pool),
    ):
        prompt = trainer.model.encoder.prompts[role]
        features = model.tokenizer(
            [prompt + texts[place] for place in places.tolist()],
            padding=True,
            truncation=True,
            max_length=model.max_seq_length,
            return_tensors="pt",
        )
        inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
        pooled = model(inputs)["sentence_embedding"]
        encoded.append(torch.nn.functional.normalize(pooled, dim=-1))
    loss = trainer.model.loss_of(batch)(torch.cat(encoded))
    loss.backward()
    parameters = [p for group in trainer.model.optimizers.param_groups for p in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, trainer.recipe.optimizer.clip)
    trainer.model.optimizers.step()
    trainer.model.optimizers.zero_grad()


if __name__ == "__main__":
    np.seterr(all="raise")
    sys.exit(run(app))
