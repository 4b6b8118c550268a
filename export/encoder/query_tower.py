"""A query encoder for an encoder that is exported already: its graph is copied as it is."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from export import encoder_json, exported_encoder
from export.encoder import model_card
from export.encoder.export import (
    LIBRARIES,
    EncoderOptions,
    ExportWork,
    export_query_encoder,
    facts,
)
from export.exported_encoder import ExportedEncoder
from service.core.bundle.bundle import QUERY_ENCODER
from service.core.errors import InvalidInput
from service.core.files.atomic import new_folder, refuse_existing
from training.datasets.dataset import Dataset
from training.hardware import versions
from training.models.torch_encoder import TorchEncoder
from training.progress import stages


def add_query_encoder(
    exported: ExportedEncoder,
    student: TorchEncoder,
    dataset: Dataset,
    target: Path,
    *,
    options: EncoderOptions,
    console: Console,
) -> ExportedEncoder:
    """Write a folder with the files of `exported` and the student's graph beside them.

    Raises `InvalidInput` where there is a query encoder already, the student does not fit, or the
    target exists, and `ParityError` where the student loses too much. Then nothing is written.
    """
    refuse_existing(target)
    description = exported.description
    if description.query_encoder is not None:
        raise InvalidInput(f"{exported.folder} has a query encoder already")
    with (
        tempfile.TemporaryDirectory() as scratch,
        new_folder(target) as folder,
        stages(console) as report,
    ):
        for name in description.files:
            if name != exported_encoder.CARD:
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(exported.folder / name, folder / name)
        work = ExportWork(
            dataset=dataset, folder=folder, scratch=Path(scratch), options=options, report=report
        )
        compared = export_query_encoder(student, exported.open_encoder(), work)
        described = encoder_json.add_query_facts(
            description,
            folder,
            query_encoder=facts(
                student, folder, quantization=options.quantization, graph=QUERY_ENCODER
            ),
            parity=compared,
            libraries=versions(*LIBRARIES),
        )
        model_card.write(described, folder)
    return exported_encoder.open_exported(target)
