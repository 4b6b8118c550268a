"""A second ranking in a folder: as the service runs it, and in LightGBM's own format."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from service.core.bundle import reranker_files
from service.core.bundle.manifest import PredictorFacts, RerankerFacts
from service.core.bundle.reranker_files import RerankerFiles
from service.core.prediction.reranking.features import FEATURES
from service.core.prediction.reranking.trees import OnnxTrees
from training.checkpoints import second_ranking
from training.reranking.learning import SecondRanking
from training.reranking.onnx_trees import as_onnx
from training.reranking.trees import LearnedTrees

TREES_FILE = "trees.txt"  # LightGBM's own format


def remove(folder: Path) -> None:
    """Remove a second ranking that an earlier call has written."""
    shutil.rmtree((folder / reranker_files.TREES).parent, ignore_errors=True)
    for name in (second_ranking.FILE, TREES_FILE):
        (folder / name).unlink(missing_ok=True)


def write(second: SecondRanking, folder: Path) -> None:
    """Write the trees in LightGBM's format and, unless they read metadata, as a service runs them.

    Nothing is written where no trees were kept.
    """
    remove(folder)
    if second.trees is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    second.trees.write(folder / TREES_FILE)
    if second.settings.metadata:
        return
    with TemporaryDirectory() as work:
        trees = Path(work) / "trees.onnx"
        _write_onnx(second.trees, trees)
        files = reranker_files.with_fingerprint(
            RerankerFiles(
                facts=_facts(second, second.trees),
                trees=trees,
                words=second.rarity.hashes,
                rarity=second.rarity.rarity,
            )
        )
        reranker_files.write(files, folder)
    second_ranking.write(files, folder, weights=second.weights)


def onnx_trees(trees: LearnedTrees) -> OnnxTrees:
    """Trees as a service runs them."""
    with TemporaryDirectory() as work:
        path = Path(work) / "trees.onnx"
        _write_onnx(trees, path)
        return OnnxTrees(path, features=trees.features)


def _write_onnx(trees: LearnedTrees, path: Path) -> None:
    path.write_bytes(as_onnx(trees.booster, trees=trees.count).SerializeToString())


def _facts(second: SecondRanking, trees: LearnedTrees) -> RerankerFacts:
    choices = second.scoring.choices
    return RerankerFacts(
        candidates=second.settings.candidates,
        features=list(FEATURES),
        trees=trees.count,
        unknown_rarity=second.rarity.unknown,
        predictor=PredictorFacts(
            tau=choices.tau, depth=choices.depth, memorization=choices.memorization
        ),
        **asdict(second.calibration),
    )
