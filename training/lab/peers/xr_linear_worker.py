"""The part of XR-Linear that runs in the interpreter with libpecos; it imports no Keymatch code.

    worker.py train FILES MODEL SETTINGS    features [N, F], labels_of [N, L], label_features [L, F]
    worker.py rank FILES MODEL SETTINGS     features [n, F] -> scores [n, L]

FILES is a folder of sparse matrices (`NAME.npz`), MODEL the library's folder, SETTINGS a JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def train(files: Path, model: Path, settings: dict[str, Any]) -> None:
    """Build the tree over PIFA and label texts, train its rankers and write them to `model`."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel
    from scipy.sparse import load_npz

    threads = settings["threads"] or -1
    features = load_npz(files / "features.npz")
    labels_of = load_npz(files / "labels_of.npz")
    label_features = LabelEmbeddingFactory.create(
        labels_of,
        features,
        method="pifa_lf_concat",
        Z=load_npz(files / "label_features.npz"),
        threads=threads,
    )
    tree = Indexer.gen(
        label_features,
        indexer_type="hierarchicalkmeans",
        nr_splits=settings["branches"],
        max_leaf_size=settings["leaf"],
        seed=settings["seed"],
        threads=threads,
    )
    trained = XLinearModel.train(
        features,
        labels_of.tocsc(),
        C=tree,
        nr_splits=settings["branches"],
        negative_sampling_scheme=settings["negatives"],
        Cp=settings["cost"],
        Cn=settings["cost"],
        threshold=settings["least_weight"],
        threads=threads,
    )
    trained.save(str(model))


def rank(files: Path, model: Path, settings: dict[str, Any]) -> None:
    """Write the scores of the best `top_k` labels of each row."""
    from pecos.xmc.xlinear.model import XLinearModel
    from scipy.sparse import load_npz, save_npz

    scores = XLinearModel.load(str(model), is_predict_only=True).predict(
        load_npz(files / "features.npz"),
        beam_size=settings["beam"],
        only_topk=settings["top_k"],
        threads=settings["threads"] or -1,
    )
    save_npz(files / "scores.npz", scores)


if __name__ == "__main__":
    task, files, model, settings = sys.argv[1:]
    {"train": train, "rank": rank}[task](Path(files), Path(model), json.loads(settings))
