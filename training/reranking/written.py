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

TREES_FILE = "trees.txt"  # LightGBM's own format


def remove(folder: Path) -> None:
    """Remove a second ranking that an earlier call has written."""
    shutil.rmtree((folder / reranker_files.TREES).parent, ignore_errors=True)
    for name in (second_ranking.FILE, TREES_FILE):
        (folder / name).unlink(missing_ok=True)


def write(second: SecondRanking, folder: Path) -> None:
    """Write trees that can be served; those that read metadata are written in LightGBM's format."""
    remove(folder)
    if second.trees is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    second.trees.write(folder / TREES_FILE)
    if second.settings.metadata:
        return
    with TemporaryDirectory() as work:
        trees = Path(work) / "trees.onnx"
        write_onnx(second, trees)
        files = reranker_files.with_fingerprint(
            RerankerFiles(
                facts=_facts(second),
                trees=trees,
                words=second.rarity.hashes,
                rarity=second.rarity.rarity,
            )
        )
        reranker_files.write(files, folder)
    second_ranking.write(files, folder)


def onnx_trees(second: SecondRanking) -> OnnxTrees:
    """The chosen trees as a service runs them."""
    with TemporaryDirectory() as work:
        trees = Path(work) / "trees.onnx"
        write_onnx(second, trees)
        assert second.trees is not None
        return OnnxTrees(trees, features=second.trees.features)


def write_onnx(second: SecondRanking, path: Path) -> None:
    """Write the chosen trees as an ONNX graph."""
    assert second.trees is not None
    path.write_bytes(as_onnx(second.trees.booster, trees=second.choice.trees).SerializeToString())


def _facts(second: SecondRanking) -> RerankerFacts:
    assert second.trees is not None
    choices = second.scoring.choices
    return RerankerFacts(
        candidates=second.settings.candidates,
        features=list(FEATURES),
        trees=second.trees.count,
        unknown_rarity=second.rarity.unknown,
        predictor=PredictorFacts(
            tau=choices.tau, depth=choices.depth, memorization=choices.memorization
        ),
        **asdict(second.calibration),
    )
