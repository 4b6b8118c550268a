"""`python -m loadtests.parts.query_towers`: quality against processor time of query towers.

Students of a few layers and a static table are distilled from a teacher, unless they exist
already. Each is exported as it would be served; its graph encodes the test queries one by one in
this thread, and the exact search ranks them against the teacher's keys. Writes query_towers.json,
query_towers.md and a plot of each metric.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import thread_time
from typing import Annotated

import numpy as np
from cyclopts import App, Parameter
from rich.console import Console

from export.encoder.checkpoint import CheckpointOptions, export_checkpoint
from export.exported_encoder import ExportedEncoder, is_exported, open_exported
from loadtests.measure.environment import environment
from loadtests.results.result_table import Report, Row
from service.command_line import open_console, run
from service.core.files.atomic import write_file
from service.core.types import Floats, Role
from training.checkpoints.choices import Choices
from training.checkpoints.model_folder import write_model
from training.checkpoints.run_json import BEST, RUN
from training.checkpoints.saved_state import saved_step
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.datasets.propensity import inverse_propensity
from training.distillation.run import prepare
from training.distillation.settings import DistillationSettings
from training.distillation.student import first_student, transformer_of
from training.distillation.teacher import Teacher, TeacherVectors, open_teacher, teacher_vectors
from training.evaluation.metrics import evaluate, labels_to_rank
from training.evaluation.prediction import OfflineMemory, predict
from training.experiments.sweeps import choices_for
from training.models.precision import Precision
from training.report.panels import Curve, Panel
from training.report.plots import LIGHT, draw
from training.selection.validation import default_slices

METRICS = ("P@1", "P@5", "R@100", "PSP@5")
MOST_LOST = 1.0  # points of P@1 that the demo's query tower may lose

Layers = Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative=())]

app = App(name="loadtests.parts.query_towers", help=__doc__)


@dataclass(frozen=True, kw_only=True)
class Tower:
    """One query encoder: its layers, processor time a query, and the test rows' metrics."""

    layers: int
    median_ms: float
    mean_ms: float
    megabytes: float
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """What all towers share: the teacher, its memory, and where students lie."""

    teacher: Teacher
    vectors: TeacherVectors
    dataset: Dataset
    choices: Choices  # the teacher's inference settings
    memory: OfflineMemory  # the teacher's keys
    out: Path
    console: Console

    def student(self, layers: int, *, steps: int, precision: Precision) -> Path:
        """The checkpoint of the student with so many layers; with the teacher's, the teacher."""
        folder = self.out / f"L{layers}"
        transformer = transformer_of(self.teacher.encoder.model, name=self.teacher.name)
        if layers == transformer.config.num_hidden_layers:
            write_model(self.teacher.encoder, folder / BEST)
        elif not (folder / RUN).is_file():
            settings = DistillationSettings(
                layers=layers, steps=steps, every=max(1, steps // 5), precision=precision
            )
            prepare(
                settings,
                student=first_student(self.teacher.encoder, settings),
                teacher=self.teacher,
                vectors=self.vectors,
                dataset=self.dataset,
                folder=folder,
                resume=saved_step(folder) is not None,
                console=self.console,
            ).finish()
        return folder / BEST

    def exported(self, checkpoint: Path, target: Path) -> ExportedEncoder:
        """The checkpoint as the graph that would be served; exported once."""
        if is_exported(target):
            return open_exported(target)
        options = CheckpointOptions(max_tokens=self.teacher.encoder.max_tokens)
        return export_checkpoint(
            str(checkpoint), self.dataset, target, options=options, console=self.console
        )

    def metrics(self, queries: Floats) -> dict[str, float]:
        """The test rows' metrics in percent, from their vectors [n, d]."""
        test, train, memory = self.dataset.test, self.dataset.train, self.memory
        ranked = predict(
            memory,
            memory.search(queries, kind=None, count=self.choices.depth),
            tau=self.choices.tau,
            memorization=self.choices.memorization,
            top_k=labels_to_rank(test.filtered),
            order=memory.label_order,
        )
        propensity = self.dataset.propensity
        measured = evaluate(
            ranked.labels,
            test.labels_of,
            inverse_propensities=inverse_propensity(
                train.labels_of, a=propensity.a, b=propensity.b
            ),
            filtered=test.filtered,
        )
        return {name: measured[name] for name in METRICS}


@app.default
def query_towers(
    *,
    teacher: str,
    data: Path,
    out: Path,
    layers: Layers = (6, 4, 3, 2, 1, 0),
    steps: int = 3_000,
    timed: int = 1_000,
    precision: Precision = "auto",
) -> int:
    """Distill what is missing, measure and report.

    Parameters
    ----------
    teacher
        A run's folder, an exported encoder's, or an encoder as `export bundle` takes it.
    data
        The data set's folder.
    out
        Folder for the results; a student of n layers lies, or is trained, in OUT/Ln.
    layers
        The students' numbers of layers; the teacher's number is the teacher, 0 a static table.
    steps
        Batches of a distillation.
    timed
        How many test queries are timed.
    precision
        What a distillation computes in; auto: bf16 where the hardware can, else fp32.
    """
    study = open_study(teacher, data, out)
    towers = []
    for count in layers:
        student = study.student(count, steps=steps, precision=precision)
        graph = study.exported(student, out / f"L{count}-graph")
        vectors, milliseconds = encode_alone(graph, study.dataset, timed=timed)
        tower = Tower(
            layers=count,
            median_ms=float(np.median(milliseconds)),
            mean_ms=float(np.mean(milliseconds)),
            megabytes=graph.graph.stat().st_size / 1e6,
            metrics=study.metrics(vectors),
        )
        towers.append(tower)
    _publish(towers, study, steps=steps)
    return 0


def open_study(teacher: str, data: Path, out: Path) -> Study:
    """Load the teacher and its vectors of a data set, which are kept in `out`."""
    dataset, opened = lf_xmc.read(data), open_teacher(teacher)
    vectors = teacher_vectors(opened, dataset, folder=out)
    train = dataset.train
    choices = opened.choices or choices_for(
        dataset,
        vectors.instances,
        vectors.label_keys,
        slices=default_slices(train.labels_of, train.filtered),
    )
    return Study(
        teacher=opened,
        vectors=vectors,
        dataset=dataset,
        choices=choices,
        memory=OfflineMemory(
            keys=np.concatenate([vectors.instances, vectors.label_keys]).astype(np.float16),
            labels_of=train.labels_of,
            label_ids=dataset.labels.uids,
        ),
        out=out,
        console=open_console(),
    )


def encode_alone(
    exported: ExportedEncoder, dataset: Dataset, *, timed: int
) -> tuple[Floats, list[float]]:
    """Unit vectors [n, d] of the test queries, and the processor time of `timed` of them, in ms.

    All are encoded alone, as a query is that meets no other one; the first ones warm the graph up.
    """
    encoder, texts = exported.open_encoder(), dataset.test.instances.texts
    vectors = encoder.embed(encoder.tokenize(texts, role=Role.QUERY))
    milliseconds = []
    for text in texts[:timed]:
        start = thread_time()
        encoder.embed(encoder.tokenize([text], role=Role.QUERY))
        milliseconds.append((thread_time() - start) * 1000)
    return vectors, milliseconds


def _publish(towers: Sequence[Tower], study: Study, *, steps: int) -> None:
    dataset, teacher, out = study.dataset, study.teacher, study.out
    best = max(towers, key=lambda tower: tower.layers)
    Report(
        title=f"Query towers on {dataset.name}: processor time of encoding a query, and quality",
        settings={
            "teacher": teacher.name,
            "teacher's fingerprint": teacher.fingerprint[:16],
            "test queries": len(dataset.test),
            "steps of a distillation": steps,
            "search": "exact, over the teacher's keys",
        },
        environment=environment(),
        rows=list(_rows(towers, best)),
    ).publish(out, "query_towers")
    for metric in METRICS:
        name = f"query_towers-{metric.replace('@', '')}"
        write_file(out / f"{name}.png", draw(_panel(towers, metric, name, dataset), LIGHT))


def _rows(towers: Sequence[Tower], best: Tower) -> Iterator[Row]:
    for tower in towers:
        lost = best.metrics["P@1"] - tower.metrics["P@1"]
        quality = ", ".join(f"{name} {tower.metrics[name]:.2f}" for name in METRICS)
        yield Row(
            what=f"{tower.layers} layers" if tower.layers else "static table",
            goal="" if tower is best else f"P@1 at most {MOST_LOST:g} below",
            measured=f"{tower.median_ms:.3f} ms, {tower.megabytes:.1f} MB; {quality}",
            met=None if tower is best else lost <= MOST_LOST,
            figures={
                "layers": tower.layers,
                "median_ms": tower.median_ms,
                "mean_ms": tower.mean_ms,
                "megabytes": tower.megabytes,
                **tower.metrics,
            },
        )


def _panel(towers: Sequence[Tower], metric: str, name: str, dataset: Dataset) -> Panel:
    points = sorted((tower.median_ms, tower.metrics[metric]) for tower in towers)
    return Panel(
        name=name,
        title=f"{dataset.name}: {metric} by the query tower's processor time",
        x="milliseconds a query, one thread",
        y=f"{metric}, percent of test rows",
        curves=(Curve(name="query towers", style=0, points=tuple(points)),),
    )


if __name__ == "__main__":
    sys.exit(run(app))
