"""Writes the exported encoder `encoder-v1`: `python -m tests.golden.write_encoder`.

The fixture stands for the exported encoders on users' disks, so it must stay as it is once 0.1.0
is released. To add something to version 1 before that, remove the folder and run this command in
the repository's root. It has everything that an exported encoder can have: prompts, the run that
trained it, label keys of its own, and IRENE's combiner and classifiers.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from export import encoder_json, exported_encoder
from export.encoder import model_card
from export.encoder_json import LabelFacts, Origin, PredictorDefaults
from service.core.bundle import irene_files
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.files.atomic import new_folder
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
        np.save(folder / exported_encoder.LABEL_KEYS, keys)
        novel = tiny_novel(Path(temporary), keys[:-1], np.arange(len(keys) - 1))
        irene_files.write(novel, folder)
        description = encoder_json.describe(
            folder,
            encoder=FACTS,
            predictor=PREDICTOR,
            parity={"parity.cosine_mean": 1.0},
            libraries={"onnx": "1.23.2"},
            origin=ORIGIN,
            labels=LabelFacts(
                digest=exported_encoder.digest_of(tiny_dataset()), keys=True, novel=novel.facts
            ),
        )
        model_card.write(description, folder)


def label_keys(encoder: OnnxEncoder) -> Halves:
    """Label keys [L, d] that differ from the texts' vectors: each leans towards the first text."""
    vectors = encode(encoder, tiny_dataset().labels.texts, role=Role.LABEL)
    leaning = vectors + 0.2 * vectors[:1]
    return (leaning / np.linalg.norm(leaning, axis=1, keepdims=True)).astype(np.float16)


if __name__ == "__main__":
    main()
