"""The oracle of a run's `[guidance]`: a finished run, whose vectors of all training texts are made.

Shapes: N training rows, L labels, d dimensions.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from service.core.types import Floats, Role
from training.checkpoints.run_json import BEST, metadata_of_run, read_run_on
from training.datasets.dataset import Dataset
from training.datasets.metadata_texts import with_metadata
from training.evaluation.encode_texts import encode_texts
from training.models.torch_encoder import load_encoder
from training.progress import status
from training.systems.mogic.guidance import guided
from training.systems.mogic.settings import GuidanceSettings
from training.systems.system import System


def guided_system(
    system: System,
    settings: GuidanceSettings,
    dataset: Dataset,
    *,
    dimension: int,
    source: str,
    console: Console,
) -> System:
    """The system with the oracle of `settings`, unchanged where they name none.

    `dataset` has its own texts, without metadata; the oracle's get what it was trained with. Raises
    `InvalidData` where the oracle is no finished run, `InvalidInput` for one on another data set,
    and as `guided`.
    """
    if settings.oracle is None:
        return system
    run = Path(settings.oracle)
    texts = with_metadata(dataset, metadata_of_run(read_run_on(run, dataset.name), run))
    with status(console, f"encoding {len(texts.train) + len(texts.labels):,} texts by the oracle"):
        instances, labels = _vectors(run, texts)
    return guided(
        system,
        settings,
        instances=instances,
        labels=labels,
        dimension=dimension,
        source=source,
    )


def _vectors(run: Path, texts: Dataset) -> tuple[Floats, Floats]:
    """The unit vectors of the training rows [N, d] and of the labels [L, d]."""
    encoder = load_encoder(str(run / BEST))
    instances = encode_texts(encoder, texts.train.instances.texts, role=Role.QUERY)
    return instances, encode_texts(encoder, texts.labels.texts, role=Role.LABEL)
