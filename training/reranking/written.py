"""Writes a reranker into a folder: in the service's format, and in LightGBM's own."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from service.core.bundle import reranker_files
from service.core.bundle.manifest import RerankerFacts
from service.core.bundle.reranker_files import RerankerFiles
from service.core.prediction.reranking.features import FEATURES
from service.core.prediction.reranking.reranker import OnnxTrees
from training.checkpoints import reranker_folder
from training.reranking.learning import LearnedReranker
from training.reranking.trees import LearnedTrees, as_onnx

TREES_FILE = "trees.txt"  # LightGBM's own format


def remove(folder: Path) -> None:
    """Remove a reranker that an earlier call wrote."""
    shutil.rmtree((folder / reranker_files.TREES).parent, ignore_errors=True)
    for name in (reranker_folder.FILE, TREES_FILE):
        (folder / name).unlink(missing_ok=True)


def write(learned: LearnedReranker, folder: Path) -> None:
    """Write the trees in LightGBM's format and, unless they read metadata, in the service's.

    Writes nothing if no trees were kept.
    """
    remove(folder)
    if learned.trees is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    learned.trees.write(folder / TREES_FILE)
    if learned.settings.metadata:
        return
    with TemporaryDirectory() as work:
        trees = Path(work) / "trees.onnx"
        _write_onnx(learned.trees, trees)
        files = reranker_files.with_fingerprint(
            RerankerFiles(
                facts=_facts(learned, learned.trees),
                trees=trees,
                words=learned.rarity.hashes,
                rarity=learned.rarity.rarity,
            )
        )
        reranker_files.write(files, folder)
    reranker_folder.write(files, folder, weights=learned.weights)


def onnx_trees(trees: LearnedTrees) -> OnnxTrees:
    """Convert trees to the form that the service runs."""
    with TemporaryDirectory() as work:
        path = Path(work) / "trees.onnx"
        _write_onnx(trees, path)
        return OnnxTrees(path, features=trees.features)


def _write_onnx(trees: LearnedTrees, path: Path) -> None:
    path.write_bytes(as_onnx(trees.booster, trees=trees.count).SerializeToString())


def _facts(learned: LearnedReranker, trees: LearnedTrees) -> RerankerFacts:
    return RerankerFacts(
        candidates=learned.settings.candidates,
        features=list(FEATURES),
        trees=trees.count,
        unknown_rarity=learned.rarity.unknown,
        predictor=learned.scoring.choices.predictor,
        **asdict(learned.calibration),
    )
