"""`python -m training distill`: a student of few layers that encodes queries like its teacher."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from service.command_line import open_console
from service.core.errors import MissingExtra
from service.core.files.atomic import refuse_unwritable
from training.datasets import lf_xmc
from training.datasets.train_test_overlap import refuse_overlap
from training.distillation.settings import DistillationSettings
from training.distillation.unlabelled import read_texts, without

if TYPE_CHECKING:
    from training.datasets.dataset import Dataset
    from training.distillation.manifest import Distillation

SHOWN = ("P@1", "P@5", "R@100", "PSP@5")


def distill(
    settings: Annotated[DistillationSettings, Parameter(name="*")],
    *,
    teacher: str,
    data: Path,
    out: Path,
    max_tokens: int | None = None,
    texts: Path | None = None,
    vectors: Path | None = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    allow_test_rows: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train a student that gives the teacher's vectors, to encode queries in less time.

    The student starts from the teacher's embeddings and evenly spaced layers, and learns from the
    training queries and the labels. OUT gets best (of the held-out rows), last and the metrics.

    Parameters
    ----------
    teacher
        A run's folder, an exported encoder's, or an encoder as `export bundle` takes it.
    data
        The data set's folder.
    out
        The run's folder.
    max_tokens
        Tokens after which a text is cut; default: the teacher's limit.
    texts
        A file of further texts to learn, one a line, such as the queries of a log.
    vectors
        A folder that keeps the teacher's vectors for several students; default: OUT.
    resume
        Continue the run in OUT from its last saved state.
    allow_test_rows
        Train even if texts of the test split occur among the training rows.
    """
    refuse_unwritable(out)
    dataset = _read(data, allow_test_rows=allow_test_rows)
    try:
        from training.distillation.run import prepare
        from training.distillation.student import first_student
        from training.distillation.teacher import open_teacher, teacher_vectors
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    opened, console = open_teacher(teacher, max_tokens=max_tokens), open_console()
    student, unlabelled = first_student(opened.encoder, settings), _unlabelled(texts, dataset)
    with console.status("encoding by the teacher"):
        encoded = teacher_vectors(opened, dataset, folder=vectors or out, unlabelled=unlabelled)
    made = prepare(
        settings,
        student=student,
        teacher=opened,
        vectors=encoded,
        dataset=dataset,
        folder=out,
        resume=resume,
        console=console,
    ).finish()
    console.print(_summary(made, out), soft_wrap=True)


def _read(data: Path, *, allow_test_rows: bool) -> Dataset:
    dataset = lf_xmc.read(data)
    if not allow_test_rows:
        refuse_overlap(dataset, data)
    return dataset


def _unlabelled(path: Path | None, dataset: Dataset) -> list[str]:
    known = (dataset.train.instances.texts, dataset.labels.texts)
    return without(read_texts(path), known) if path else []


def _summary(made: Distillation, out: Path) -> str:
    held_out = ", ".join(
        f"{name} {made.held_out[name]:.2f} (teacher {made.teacher_held_out[name]:.2f})"
        for name in SHOWN
        if name in made.held_out
    )
    return (
        f"{out}/best: step {made.step}, {made.seconds:,.0f} s; held-out rows:"
        f" cosine {made.agreement:.4f}, {held_out}"
    )
