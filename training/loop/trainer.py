"""The training loop: batch -> vectors -> the system's loss -> a step of the optimizers.

It runs in one process or, under `torchrun`, in one process per GPU. A batch is global: each process
encodes a part of it, and the loss equals that of a single process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from service.command_line import Interrupted
from service.core.errors import Diverged
from service.core.types import Floats
from training.batches.order import dropout_seed
from training.checkpoints import trained_texts
from training.checkpoints.run_json import BEST, LAST
from training.checkpoints.trained_texts import TrainedTexts
from training.evaluation.answers import encoded_rows, keep_untrained
from training.loop import state
from training.loop.batch_source import BatchSource
from training.loop.interruption import Interruption
from training.loop.journal import Journal
from training.loop.model import TrainedModel
from training.loop.optimizers import learning_rate_factor
from training.loop.state import Progress
from training.recipes.recipe import Recipe
from training.selection.memory_choices import choices_for
from training.selection.validation import SAMPLED, Validation, criterion


@dataclass(frozen=True, kw_only=True)
class Length:
    """The length of a run: it ends after `steps` or `seconds`, whichever comes first.

    The learning rate follows `place`, so it is zero at the end in both cases.
    """

    steps: int
    seconds: float = math.inf

    def place(self, progress: Progress) -> int:
        """Return how far the run is, in steps from 0 to `steps`."""
        by_time = int(self.steps * min(1.0, progress.seconds / self.seconds))
        return min(self.steps, max(progress.step, by_time))

    def is_over(self, progress: Progress) -> bool:
        """Return whether no step is left."""
        return self.place(progress) >= self.steps


def length_of(recipe: Recipe, *, rows: int) -> Length:
    """Return the length of a run on `rows` training rows; an epoch draws each row once."""
    settings, steps = recipe.optimizer, recipe.optimizer.steps
    if steps is None:
        steps = recipe.steps_of(settings.epochs or 0.0, rows=rows)
    return Length(
        steps=steps, seconds=math.inf if settings.minutes is None else 60.0 * settings.minutes
    )


@dataclass(kw_only=True, eq=False)
class Trainer:
    """A run: takes its steps, validates, keeps the best checkpoint and saves its state."""

    recipe: Recipe
    identity: str  # a hash of recipe and data
    folder: Path
    length: Length
    model: TrainedModel
    batches: BatchSource
    validation: Validation | None  # None if no rows are held out
    trained: TrainedTexts  # the record that is written with each checkpoint
    journal: Journal
    progress: Progress
    interruption: Interruption = field(default_factory=Interruption)
    kept_vectors: tuple[Floats, Floats] | None = None  # see `_compare`
    _saved_step: int = -1

    @property
    def best(self) -> Path:
        """The folder of the checkpoint that the run keeps."""
        return self.folder / BEST

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes the run's files."""
        return bool(self.model.accelerator.is_main_process)

    def train(self) -> Progress:
        """Take all remaining steps; returns the progress at the end.

        Raises `Interrupted` after a signal, once the state is saved, and `Diverged` if the loss is
        not finite.
        """
        start, earlier = perf_counter(), self.progress.seconds
        with self.journal.shown(), self.interruption.noted():
            if not self.progress.step:
                self._validate_untrained()
            while not self._is_finished():
                self._stop_if_interrupted()
                step, place = self.progress.step, self.length.place(self.progress)
                if self.batches.refresh_is_due(step):
                    self.batches.refresh(step, *self.model.neighbours(self.journal.encoded))
                self.take_step(step)
                self.progress.step = step + 1
                self.progress.seconds = earlier + perf_counter() - start
                if self._validation_is_due(place):
                    self._validate()
                    self.progress.seconds = earlier + perf_counter() - start
                    self._save()
            self._stop_if_interrupted()
        return self.progress

    def _stop_if_interrupted(self) -> None:
        """Save the state and raise `Interrupted` if any process has received a signal."""
        number, accelerator = self.interruption.number, self.model.accelerator
        if accelerator.num_processes > 1:
            received = torch.tensor([number], device=accelerator.device)
            number = int(accelerator.gather(received).max())
        if not number:
            return
        if self._saved_step != self.progress.step:
            self._save()
        raise Interrupted(number)

    def _is_finished(self) -> bool:
        patience = self.recipe.validation.patience or math.inf
        return self.progress.checks_since_best >= patience or self.length.is_over(self.progress)

    def take_step(self, step: int) -> None:
        """Update the parameters by the gradient of step `step`, counted from 0.

        Raises `Diverged`, in all processes at once, if the loss or the gradient is not finite.
        """
        start, settings = perf_counter(), self.recipe.optimizer
        place = max(step, self.length.place(self.progress))
        factor = learning_rate_factor(place, steps=self.length.steps, warmup=settings.warmup)
        process = self.model.accelerator.process_index
        torch.manual_seed(dropout_seed(self.recipe.seed, step, process))
        losses, tokens = [], 0
        for turn in range(settings.accumulation):
            batch = self.batches.batch(step * settings.accumulation + turn)
            lengths = self.model.embedder.table.lengths  # without padding
            tokens += int(lengths[self.model.texts_of(batch)].sum())
            losses.append(
                self.model.backward(
                    batch,
                    accumulation=settings.accumulation,
                    gradient_cache=settings.gradient_cache,
                )
            )
        loss, rate = torch.stack(losses).mean(), factor * settings.learning_rate
        if not self.model.step(loss=loss, learning_rate_factor=factor, clip=settings.clip):
            raise self._diverged(step + 1, loss=float(loss), rate=rate)
        self.progress.tokens += tokens
        self.journal.trained(
            step + 1,
            place=max(step + 1, place),
            loss=float(loss),
            rate=rate,
            tokens_per_second=tokens / (perf_counter() - start),
        )

    def _diverged(self, step: int, *, loss: float, rate: float) -> Diverged:
        """Return the error, which names the step and the checkpoint that is kept."""
        what = "the gradient" if math.isfinite(loss) else f"the loss ({loss:g})"
        kept = "no checkpoint was kept before it"
        if self.progress.best_step >= 0:
            kept = f"{self.best} has the checkpoint of step {self.progress.best_step}"
        return Diverged(
            f"{what} is not finite at step {step}, with a learning rate of {rate:.3g}",
            advice=f"{kept}. Train again with a smaller optimizer.learning_rate, into another"
            " folder",
        )

    def _validation_is_due(self, before: int) -> bool:
        """Whether to validate after the step that started at the place `before`."""
        if self.length.is_over(self.progress):
            return True
        settings, steps = self.recipe.validation, self.length.steps
        if settings.checks:
            place = self.length.place(self.progress)
            return place * settings.checks // steps > before * settings.checks // steps
        return self.progress.step % settings.every == 0

    def _validate_untrained(self) -> None:
        """Score the untrained encoder as the first checkpoint, unless the system has a head.

        Also store the answers of its memory to test rows.
        """
        validation, settings = self.validation, self.recipe.encoder
        is_rival = self.recipe.validation.untrained and self.model.system.head is None
        if validation is None or not is_rival:
            return
        instances, labels = self._compare(validation, (1.0,))
        dataset = validation.dataset
        encode = partial(self.model.query_vectors, max_tokens=settings.query_tokens)
        queries = encoded_rows(dataset, seed=self.recipe.seed, encode=encode)
        if queries is None or not self.is_main_process:
            return
        keep_untrained(
            dataset,
            self.folder,
            encoder=settings.name,
            instances=instances,
            labels=labels,
            queries=queries,
            choices=choices_for(dataset, instances, labels, slices=validation.slices),
        )

    def _validate(self) -> None:
        """Score the held-out rows and keep the best checkpoint; without rows, keep the last."""
        if self.validation is not None:
            self._compare(self.validation, self.recipe.validation.mixing)
            return
        has_head, keys = self.model.system.head is not None, None
        if has_head:
            _, keys = self.model.memory_keys(self.journal.encoded)
        self._keep(mixing=1.0, label_keys=keys)

    def _compare(self, validation: Validation, mixings: Sequence[float]) -> tuple[Floats, Floats]:
        """Score the held-out rows at each mixing, and keep the checkpoint if it is the best.

        Returns the memory's keys at the last mixing, [N, d] and [L, d]. If the last checkpoint is
        the best, its keys are stored in `kept_vectors`, so the end of the run need not encode.
        """
        settings, best = self.recipe.validation, None
        for mixing in self._promising(validation, mixings):
            with self.model.mixture.mixed(mixing):
                keys = self.model.memory_keys(self.journal.encoded)
            scores = validation.scores(*keys)
            checked = (criterion(scores, settings.metrics), mixing, scores, keys)
            if best is None or checked[0] > best[0]:
                best = checked
        assert best is not None
        score, mixing, scores, keys_of_best = best
        self.journal.validated(
            self.progress.step, scores, seconds=self.progress.seconds, mixing=mixing
        )
        self.progress.checks_since_best += 1
        if score > self.progress.best_score:
            self.progress.best_score = score
            self._keep(mixing=mixing, label_keys=keys_of_best[1])
            if self.length.is_over(self.progress) and self.model.system.head is None:
                self.kept_vectors = keys_of_best
        return keys

    def _promising(self, validation: Validation, mixings: Sequence[float]) -> Sequence[float]:
        """Return the mixings to encode all texts at; for many texts, only the best on a sample.

        The sample is a memory of `SAMPLED` texts. A system with a head needs all texts.
        """
        texts = len(self.model.embedder.table)
        if len(mixings) < 2 or texts < 2 * SAMPLED or self.model.system.head is not None:
            return mixings
        drawn = np.random.default_rng([self.recipe.seed, 17]).permutation(texts)[:SAMPLED]
        sample = np.union1d(validation.slices.held_out, drawn)
        scores = {}
        for mixing in mixings:
            with self.model.mixture.mixed(mixing):
                keys = self.model.sampled_keys(sample, self.journal.encoded)
            scores[mixing] = criterion(validation.scores(*keys), self.recipe.validation.metrics)
        return [max(mixings, key=scores.__getitem__)]

    def _keep(self, *, mixing: float, label_keys: Floats | None) -> None:
        self.progress.best_step, self.progress.checks_since_best = self.progress.step, 0
        self.progress.best_mixing = mixing
        self.write_best(mixing=mixing, label_keys=label_keys)

    def write_best(self, *, mixing: float, label_keys: Floats | None) -> None:
        """Write the model as the best checkpoint, with the record of what it has trained on.

        All processes must call it. Only systems with a head have `label_keys`.
        """
        head_weights = self.model.head_weights()
        if self.is_main_process:
            self.model.write_checkpoint(
                self.best,
                mixing=mixing,
                head_weights=head_weights,
                label_keys=None if head_weights is None else label_keys,
            )
            trained_texts.write(self.trained, self.best)

    def _save(self) -> None:
        """Write the state that `--resume` reads."""
        trained = self.model.state()
        if self.is_main_process:
            state.save(
                self.folder / LAST,
                run=self.identity,
                progress=self.progress,
                neighbourhoods=self.batches.neighbourhoods,
                trained=trained,
            )
        self.model.accelerator.wait_for_everyone()
        self._saved_step = self.progress.step
