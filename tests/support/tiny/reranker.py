"""A reranker for tiny bundles: trees that learned an invented rule, so that orders change."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from service.core.bundle import reranker_files
from service.core.bundle.manifest import PredictorFacts, RerankerFacts
from service.core.bundle.reranker_files import RerankerFiles
from service.core.prediction.reranking.features import FEATURES
from service.core.prediction.reranking.text_overlap import WordRarity
from service.core.types import Doubles, Floats
from training.checkpoints import reranker_folder
from training.reranking.trees import LearnedTrees, as_onnx, learn_trees

TREES = 12


class SumOfFeatures:
    """Replaces trees if a test compares answers: every feature changes the sum."""

    def __init__(self) -> None:
        self.read: list[Floats] = []

    def scores(self, features: Floats) -> Doubles:
        self.read.append(features)
        return features.astype(np.float64) @ np.linspace(-1.0, 1.0, features.shape[1])


def taste(features: Floats) -> Doubles:
    """Prefer long labels with rare words and few clicks, which a memory would not rank first."""
    chosen = ("trigrams of the label", "words, rarity", "label frequency")
    long, rare, frequency = (features[:, FEATURES.index(name)] for name in chosen)
    return np.asarray(long + rare - 3.0 * frequency, np.float64)


@cache
def tiny_trees(*, seed: int = 0) -> LearnedTrees:
    """Return trees that learned the rule of `taste` from random features."""
    rng = np.random.default_rng(seed)
    features = (rng.random((4_000, len(FEATURES))) * 20.0).astype(np.float32)
    liked = taste(features)
    positive = liked > np.quantile(liked, 0.8)
    return learn_trees(features, positive, [20] * 200, names=FEATURES, trees=TREES, seed=seed)


def tiny_reranker(
    source: Path, labels: list[str], predictor: PredictorFacts, *, candidates: int, seed: int = 0
) -> RerankerFiles:
    """Return the files of a reranker of `candidates` labels, with its graph in `source`."""
    path = source / "trees.onnx"
    path.write_bytes(as_onnx(tiny_trees(seed=seed).booster, trees=TREES).SerializeToString())
    rarity = WordRarity.among(labels)
    return reranker_files.with_fingerprint(
        RerankerFiles(
            facts=RerankerFacts(
                candidates=candidates,
                features=list(FEATURES),
                trees=TREES,
                slope=0.8,
                intercept=-1.5,
                unknown_rarity=rarity.unknown,
                predictor=predictor,
            ),
            trees=path,
            words=rarity.hashes,
            rarity=rarity.rarity,
        )
    )


def write_reranker(
    folder: Path, labels: Sequence[str], predictor: PredictorFacts, *, candidates: int, weights: str
) -> Path:
    """Write a folder as `rerank` does for the checkpoint with the digest `weights`."""
    folder.mkdir()
    files = tiny_reranker(folder, list(labels), predictor, candidates=candidates)
    reranker_files.write(files, folder)
    reranker_folder.write(files, folder, weights=weights)
    return folder
