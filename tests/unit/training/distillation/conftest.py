"""A teacher of four layers, and distillations of it that take a second."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.tiny.training import tiny_dataset, write_tiny_checkpoint
from training.distillation.manifest import Distillation
from training.distillation.run import prepare
from training.distillation.settings import DistillationSettings
from training.distillation.student import first_student
from training.distillation.teacher import open_teacher, teacher_vectors

LAYERS = 4

Distill = Callable[..., Distillation]


@pytest.fixture(scope="session")
def teacher_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained checkpoint of four layers; tests must not change it."""
    import torch

    torch.set_num_threads(1)
    return write_tiny_checkpoint(tmp_path_factory.mktemp("teacher"), layers=LAYERS)


@pytest.fixture
def distill(teacher_folder: Path, tmp_path: Path) -> Distill:
    """`distill(folder, resume=..., **settings)` runs a distillation to its end."""

    def distilled(
        folder: Path, *, resume: bool = False, unlabelled: Sequence[str] = (), **changes: object
    ) -> Distillation:
        numbers = {"layers": 2, "steps": 8, "batch": 16, "every": 4, "precision": "fp32"}
        settings = DistillationSettings(**{**numbers, **changes})  # type: ignore[arg-type]
        teacher, dataset = open_teacher(str(teacher_folder)), tiny_dataset()
        return prepare(
            settings,
            student=first_student(teacher.encoder, settings),
            teacher=teacher,
            vectors=teacher_vectors(
                teacher, dataset, folder=tmp_path / "vectors", unlabelled=unlabelled
            ),
            dataset=dataset,
            folder=folder,
            resume=resume,
            console=Console(quiet=True),
        ).finish()

    return distilled
