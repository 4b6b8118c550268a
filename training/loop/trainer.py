"""The one training loop: rows -> batch -> vectors -> the system's loss -> AdamW.

On one processor or, under `torchrun`, many GPUs: a batch is the global one, every process encodes
its share of it, and the loss is that of one process with the same batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from service.core.types import Floats, Rows
from training.batches.batch import Batch, assemble
from training.batches.order import batch_rows, dropout_seed, step_rng
from training.checkpoints.model_folder import write_model
from training.checkpoints.run_json import BEST
from training.datasets.training_pairs import TrainingPairs
from training.loop import state
from training.loop.embedder import Embedder
from training.loop.journal import Journal
from training.loop.optimizers import Optimizers
from training.loop.refresh import Refresh
from training.loop.schedule import learning_rate_factor
from training.loop.state import Found, Parts, Progress
from training.models.torch_encoder import TorchEncoder
from training.models.wise_ft import Mixture
from training.recipes.recipe import Recipe
from training.selection.validation import Validation, criterion
from training.systems import System, encoded

LAST = "last"  # what --resume goes on from


@dataclass(kw_only=True, eq=False)
class Trainer:
    """A run in the making; `run` tells it from runs with other numbers or other data."""

    recipe: Recipe
    run: str
    folder: Path
    pairs: TrainingPairs
    rows: Rows  # that train
    system: System
    encoder: TorchEncoder
    embedder: Embedder
    mixture: Mixture
    refresh: Refresh
    validation: Validation | None
    optimizer: Optimizers
    parts: Parts
    accelerator: Accelerator
    journal: Journal
    progress: Progress
    found: Found

    def train(self) -> Progress:
        """Take all steps that are left; returns where the run stands."""
        settings, steps = self.recipe.validation, self.recipe.optimizer.steps
        start, before = perf_counter(), self.progress.seconds
        with self.journal.shown():
            while self.progress.step < steps and not self._out_of_patience():
                step = self.progress.step
                fresh = None
                if self.refresh.due(step):
                    fresh = self.refresh.vectors()
                    self.found = self.refresh.find(step, *fresh)
                self._step(step)
                self.progress.step = step + 1
                self.progress.seconds = before + perf_counter() - start
                if self.progress.step % settings.every == 0 or self.progress.step == steps:
                    self._check()
                    self.progress.seconds = before + perf_counter() - start
                    self._save()
        return self.progress

    def keys(self) -> tuple[Floats, Floats]:
        """X and Z of the memory as they are now: instances [N, d] and labels [L, d]."""
        instances, labels = self.refresh.vectors()
        return instances, self.system.label_keys(labels)

    def _step(self, step: int) -> None:
        start, settings = perf_counter(), self.recipe.optimizer
        factor = learning_rate_factor(step, steps=settings.steps, warmup=settings.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["base_learning_rate"]
        torch.manual_seed(dropout_seed(self.recipe.seed, step, self.accelerator.process_index))
        losses, tokens = [], 0
        for turn in range(settings.accumulation):
            batch = self._batch(step * settings.accumulation + turn)
            texts = self._texts(batch)
            tokens += self.embedder.tokens(texts)
            losses.append(self._backward(batch, texts))
        self._scale_own()
        self.optimizer.clip(most=settings.clip, accelerator=self.accelerator)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.tokens += tokens
        self.journal.trained(
            step + 1,
            loss=float(torch.stack(losses).mean()),
            rate=factor * settings.learning_rate,
            tokens_per_second=tokens / (perf_counter() - start),
        )

    def _batch(self, number: int) -> Batch:
        settings = self.recipe.batch
        rows = batch_rows(
            number,
            rows=self.rows,
            size=settings.instances,
            clusters=self.found.clusters,
            seed=self.recipe.seed,
        )
        return assemble(
            self.pairs,
            rows,
            settings=settings,
            mined=self.found.mined,
            rng=step_rng(self.recipe.seed, number),
        )

    def _texts(self, batch: Batch) -> Rows:
        """The table's places of what the batch encodes: its instances, then its pool."""
        if not self.system.encodes_labels:
            return batch.rows
        return np.concatenate([batch.rows, self.pairs.labels_of.shape[0] + batch.pool])

    def _backward(self, batch: Batch, texts: Rows) -> Tensor:
        """Add the batch's gradient, and return its loss."""
        loss_of = self._loss_of(batch)
        # Gradients are averaged over processes, and each has only its own texts' part of the sum.
        scale = self.accelerator.num_processes / self.recipe.optimizer.accumulation
        if self.recipe.optimizer.gradient_cache and self.embedder.learns:
            scaled = self.embedder.backward_cached(texts, lambda vectors: scale * loss_of(vectors))
            return scaled / scale
        if self.embedder.learns:
            vectors = self.embedder.embed(texts)
        else:
            vectors = torch.from_numpy(self.embedder.vectors(texts)).to(self.accelerator.device)
        loss = loss_of(vectors)
        self.accelerator.backward(scale * loss)
        return loss.detach()

    def _scale_own(self) -> None:
        """Scale the own parameters' gradients back: every process has them whole."""
        for parameter in self.system.own.parameters() if self.system.own is not None else ():
            if parameter.grad is not None:
                parameter.grad /= self.accelerator.num_processes

    def _loss_of(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        return lambda vectors: self.system.loss(encoded(batch, vectors))

    def _check(self) -> None:
        """Score the held-out rows and keep the encoder if it is the best so far."""
        step = self.progress.step
        if self.validation is None:
            self._keep(step, 1.0, self.keys()[1] if self.system.own is not None else None)
            return
        settings, found = self.recipe.validation, []
        for mixing in settings.mixing:
            with self.mixture.at(mixing):
                keys = self.keys()
            scores = self.validation.scores(*keys)
            found.append((criterion(scores, settings.metrics), mixing, scores, keys[1]))
        score, mixing, scores, label_keys = max(found, key=itemgetter(0))
        self.journal.validated(step, scores, seconds=self.progress.seconds, mixing=mixing)
        shown = ", ".join(
            f"lambda {memorization:g}: P@1 {found['P@1']:.2f} R@100 {found['R@100']:.2f}"
            for memorization, found in scores.items()
        )
        mean = "" if mixing == 1.0 else f", mixing {mixing:g}"
        self.journal.said(f"step {step}{mean}: {shown}")
        self.progress.checks_since_best += 1
        if score > self.progress.best_score:
            self.progress.best_score = score
            self._keep(step, mixing, label_keys)

    def _keep(self, step: int, mixing: float, label_keys: Floats | None) -> None:
        self.progress.best_step, self.progress.checks_since_best = step, 0
        self.progress.best_mixing = mixing
        own = None if self.system.own is None else self.system.own.state_dict()
        if self.accelerator.is_main_process:
            with self.mixture.at(mixing):
                write_model(
                    self.encoder,
                    self.folder / BEST,
                    own=own,
                    label_keys=label_keys if self.system.own is not None else None,
                )

    def _out_of_patience(self) -> bool:
        patience = self.recipe.validation.patience
        return bool(patience) and self.progress.checks_since_best >= patience

    def _save(self) -> None:
        learned = self.parts.learned()
        if self.accelerator.is_main_process:
            state.save(
                self.folder / LAST,
                run=self.run,
                progress=self.progress,
                found=self.found,
                learned=learned,
            )
        self.accelerator.wait_for_everyone()
