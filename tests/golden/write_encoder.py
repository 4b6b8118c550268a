"""Writes the exported encoder `encoder-v1`: `python -m tests.golden.write_encoder`.

Once 0.1.0 is released, the fixture must not change: it represents encoders on users' disks. If the
format changes before that, remove the folder and run this command in the repository's root. The
fixture has every part that an exported encoder can have: prompts, a description of the training
run, label keys, and IRENE's combiner and classifiers.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from export.encoder.export import model_card
from export.exported_encoder import (
    CARD,
    LABEL_KEYS,
    Description,
    LabelFacts,
    Origin,
    PredictorDefaults,
    digest_of,
    write_description,
)
from service.core.bundle import irene_files
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.files.atomic import new_folder
from service.core.files.folder_facts import file_facts
from service.core.types import Halves, Role
from tests.support.tiny.encoder import tiny_facts, write_tiny_encoder
from tests.support.tiny.export import tiny_dataset
from tests.support.tiny.novel import tiny_novel

ENCODER = Path(__file__).parent / "encoder-v1"
FACTS = tiny_facts(query_prompt="query: ", label_prompt="keyword: ", max_tokens=24)
PREDICTOR = PredictorDefaults(tau=0.05, depth=100, memorization=0.7)
ORIGIN = Origin(
    recipe="tiny.toml",
    base="package:tiny",
    dataset="outdoor goods",
    seed=7,
    held_out_rows=2,
    steps=400,
    seconds=61.5,
    tokens=12345,
    hardware={"device": "a processor", "cores": 2, "precision": "bf16"},
    mixing=0.5,
    metrics={"P@1": 52.5, "R@10": 81.25, "rows": 8.0},
)


def main() -> None:
    with TemporaryDirectory() as temporary, new_folder(ENCODER) as folder:
        write_tiny_encoder(folder)
        keys = label_keys(OnnxEncoder(folder, FACTS))
        np.save(folder / LABEL_KEYS, keys)
        novel = tiny_novel(Path(temporary), keys[:-1], np.arange(len(keys) - 1))
        irene_files.write(novel, folder)
        description = Description(
            encoder=FACTS,
            predictor=PREDICTOR,
            parity={"parity.cosine_mean": 1.0},
            libraries={"onnx": "1.23.2"},
            files=file_facts(folder),
            origin=ORIGIN,
            labels=LabelFacts(digest=digest_of(tiny_dataset()), keys=True, novel=novel.facts),
        )
        write_description(description, folder)
        (folder / CARD).write_text(model_card(description), encoding="utf-8")


def label_keys(encoder: OnnxEncoder) -> Halves:
    """Label keys [L, d]: the labels' text vectors, each shifted towards that of the first text."""
    vectors = encode(encoder, tiny_dataset().labels.texts, role=Role.LABEL)
    leaning = vectors + 0.2 * vectors[:1]
    return (leaning / np.linalg.norm(leaning, axis=1, keepdims=True)).astype(np.float16)


if __name__ == "__main__":
    main()
