"""A distillation from its settings to the student's folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from service.core.types import Floats
from training.checkpoints.choices import Choices, as_document, write_choices
from training.checkpoints.run_json import write_run
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import with_relevance
from training.datasets.training_pairs import TrainingPairs
from training.distillation import manifest
from training.distillation.batches import TextBatches, text_batches
from training.distillation.manifest import Distillation
from training.distillation.settings import SYSTEM, DistillationSettings, loop_recipe
from training.distillation.student import layer_stack
from training.distillation.student_model import StudentModel, TeacherImitation
from training.distillation.teacher import Teacher, TeacherVectors
from training.distillation.unlabelled import text_digest
from training.experiments.sweeps import choices_for
from training.hardware import hardware
from training.loop import state
from training.loop.build_model import (
    make_accelerator,
    make_embedder,
    pretrained,
    set_dropout,
    token_table,
)
from training.loop.journal import Journal
from training.loop.length import length_of
from training.loop.optimizers import make_optimizers
from training.loop.setup import run_identity, saved_state
from training.loop.state import Progress
from training.loop.trainer import Trainer
from training.models.torch_encoder import TorchEncoder
from training.models.wise_ft import Mixture
from training.recipes.recipe import Recipe
from training.selection.validation import Slices, Validation, hold_out


@dataclass(frozen=True, kw_only=True, eq=False)
class DistillationRun:
    """A prepared distillation, before its first step or at its last saved one."""

    teacher: Teacher
    dataset: Dataset
    choices: Choices  # the teacher's inference settings
    trainer: Trainer
    student: StudentModel
    settings: DistillationSettings

    def finish(self) -> Distillation:
        """Take all remaining steps; write the manifest into the best student's folder."""
        trainer, student = self.trainer, self.student
        progress = trainer.train()
        student.load_checkpoint(trainer.best)
        vectors = student.teacher
        instances, label_keys = student.memory_keys(trainer.journal.encoded)
        queries = student.held_out
        made = Distillation(
            teacher=self.teacher.name,
            teacher_fingerprint=self.teacher.fingerprint,
            teacher_layers=len(layer_stack(self.teacher.encoder.model, name=self.teacher.name)[1]),
            layers=self.settings.layers,
            settings=asdict(self.settings),
            step=progress.best_step,
            seconds=progress.seconds,
            agreement=mean_cosine(instances[queries], vectors.instances[queries]),
            held_out=self._held_out(instances, label_keys),
            teacher_held_out=self._held_out(vectors.instances, label_keys),
        )
        write_choices(trainer.best, self.choices)
        manifest.write(made, trainer.best)
        write_run(trainer.folder, self._facts(progress))
        return made

    def _held_out(self, instances: Floats, label_keys: Floats) -> dict[str, float]:
        """Metrics of the held-out rows in percent, empty where there are none."""
        validation = self.trainer.validation
        if validation is None:
            return {}
        return validation.scores(instances, label_keys)[self.choices.memorization]

    def _facts(self, progress: Progress) -> dict[str, object]:
        """The content of `run.json`."""
        return {
            "recipe": SYSTEM,
            "settings": asdict(self.trainer.recipe),
            "dataset": self.dataset.name,
            "progress": asdict(progress),
            "choices": as_document(self.choices),
            "hardware": hardware(self.student.accelerator),
        }


def prepare(
    settings: DistillationSettings,
    *,
    student: TorchEncoder,
    teacher: Teacher,
    vectors: TeacherVectors,
    dataset: Dataset,
    folder: Path,
    resume: bool,
    console: Console,
) -> DistillationRun:
    """Set a distillation up in `folder`; with `resume` it goes on from its last saved state.

    `student` is that of `first_student`. Raises `InvalidData` for a folder that holds another run
    (without `resume`: any).
    """
    saved = saved_state(folder, resume=resume)
    slices = _slices(dataset, settings)
    choices = teacher.choices or choices_for(
        dataset, vectors.instances, vectors.label_keys, slices=slices
    )
    recipe = _recipe(settings, teacher, choices, unlabelled=text_digest(vectors.texts))
    model = _student_model(
        student, recipe, dataset, settings=settings, vectors=vectors, slices=slices
    )
    trainer = _trainer(
        model,
        recipe,
        dataset,
        saved=saved,
        folder=folder,
        batches=text_batches(dataset, settings, slices.held_out, vectors.texts),
        validation=_validation(
            recipe, with_relevance(dataset, choices.relevance), slices, tau=choices.tau
        ),
        console=console,
    )
    return DistillationRun(
        teacher=teacher,
        dataset=dataset,
        choices=choices,
        trainer=trainer,
        student=model,
        settings=settings,
    )


def _recipe(
    settings: DistillationSettings, teacher: Teacher, choices: Choices, *, unlabelled: str
) -> Recipe:
    return loop_recipe(
        settings,
        teacher=teacher.name,
        fingerprint=teacher.fingerprint,
        max_tokens=teacher.encoder.max_tokens,
        choices=choices,
        unlabelled=unlabelled,
    )


def _trainer(
    model: StudentModel,
    recipe: Recipe,
    dataset: Dataset,
    *,
    saved: Path | None,
    folder: Path,
    batches: TextBatches,
    validation: Validation | None,
    console: Console,
) -> Trainer:
    """The training loop, at its first step or where the saved state stopped."""
    identity, progress = run_identity(recipe, dataset), Progress()
    if saved is not None:
        progress, _ = state.load(saved, run=identity, model=model)
    length = length_of(recipe, rows=len(dataset.train))
    journal = Journal(folder, console=console, steps=length.steps, step=progress.step, silent=False)
    return Trainer(
        recipe=recipe,
        identity=identity,
        folder=folder,
        length=length,
        model=model,
        batches=batches,
        validation=validation,
        journal=journal,
        progress=progress,
    )


def mean_cosine(first: Floats, second: Floats) -> float | None:
    """The mean inner product of two tables of unit vectors, [n, d] each; None where n is 0."""
    return float((first * second).sum(axis=1).mean()) if len(first) else None


def _student_model(
    encoder: TorchEncoder,
    recipe: Recipe,
    dataset: Dataset,
    *,
    settings: DistillationSettings,
    vectors: TeacherVectors,
    slices: Slices,
) -> StudentModel:
    accelerator = make_accelerator(recipe)
    set_dropout(encoder.model, 0.0)  # the targets are exact
    mixture = Mixture(pretrained(encoder), recipe.validation.mixing)
    table = token_table(encoder, dataset, recipe, queries=vectors.texts)
    embedder = make_embedder(encoder, table, recipe, accelerator)
    optimizers = make_optimizers(embedder.module, None, recipe)
    embedder.module, *optimizers.each = accelerator.prepare(embedder.module, *optimizers.each)
    embedder.module.train()
    return StudentModel(
        encoder=encoder,
        embedder=embedder,
        system=TeacherImitation(settings, vectors),
        mixture=mixture,
        optimizers=optimizers,
        accelerator=accelerator,
        instances=len(dataset.train),
        teacher=vectors,
        held_out=slices.held_out,
    )


def _slices(dataset: Dataset, settings: DistillationSettings) -> Slices:
    """The settings' number of held-out rows, but at most a fifth of those with labels."""
    train = dataset.train
    candidates = TrainingPairs(labels_of=train.labels_of, filtered=train.filtered).trainable()
    count = min(settings.held_out, len(candidates) // 5)
    return hold_out(candidates, total=len(train), count=count, seed=settings.seed)


def _validation(
    recipe: Recipe, dataset: Dataset, slices: Slices, *, tau: float
) -> Validation | None:
    if not len(slices.held_out):
        return None
    return Validation(dataset=dataset, slices=slices, settings=recipe.validation, tau=tau)
