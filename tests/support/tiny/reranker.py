"""A reranker for tiny bundles: a few manual trees whose order differs from the memory's."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from service.core.bundle import reranker_files
from service.core.bundle.manifest import PredictorFacts, RerankerFacts
from service.core.bundle.reranker_files import RerankerFiles
from service.core.prediction.reranking.features import FEATURES
from service.core.prediction.reranking.reranker import INPUT, OUTPUT
from service.core.prediction.reranking.text_overlap import WordRarity
from service.core.types import Doubles, Floats
from tests.support.tiny.graphs import graph_of
from training.checkpoints import reranker_folder

# Each tree compares one feature with a threshold: long labels with rare words and few clicks win.
TREES = [
    *(("trigrams of the label", float(at), -0.35, 0.45) for at in range(6, 15)),
    *(("words, rarity", at / 2, -0.25, 0.3) for at in range(1, 6)),
    *(("label frequency", at / 4, 0.55, -0.4) for at in range(1, 5)),
    *(("similarity", at / 50, 0.013, -0.017) for at in range(-50, 50)),  # few equal sums
]


class SumOfFeatures:
    """Replaces trees if a test compares answers: every feature changes the sum."""

    def scores(self, features: Floats) -> Doubles:
        return features.astype(np.float64) @ np.linspace(-1.0, 1.0, features.shape[1])


def write_trees(path: Path) -> Path:
    """Write the graph of `TREES`: features [k, F] -> sums [k, 1]. Node 0 is the root of a tree."""
    nodes = [(tree, node) for tree in range(len(TREES)) for node in range(3)]
    leaves = [(tree, node) for tree, node in nodes if node]
    ensemble = helper.make_node(
        "TreeEnsembleRegressor",
        [INPUT],
        [OUTPUT],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[tree for tree, _ in nodes],
        nodes_nodeids=[node for _, node in nodes],
        nodes_modes=["LEAF" if node else "BRANCH_LEQ" for _, node in nodes],
        nodes_featureids=[0 if node else FEATURES.index(TREES[tree][0]) for tree, node in nodes],
        nodes_values=[0.0 if node else TREES[tree][1] for tree, node in nodes],
        nodes_truenodeids=[0 if node else 1 for _, node in nodes],
        nodes_falsenodeids=[0 if node else 2 for _, node in nodes],
        target_treeids=[tree for tree, _ in leaves],
        target_nodeids=[node for _, node in leaves],
        target_ids=[0] * len(leaves),
        target_weights=[TREES[tree][1 + node] for tree, node in leaves],
    )
    features, scores = {INPUT: [None, len(FEATURES)]}, {OUTPUT: [None, 1]}
    onnx.save(graph_of([ensemble], features, scores), path)
    return path


def tiny_reranker(
    source: Path, labels: list[str], predictor: PredictorFacts, *, candidates: int
) -> RerankerFiles:
    """Return the files of a reranker of `candidates` labels, with its graph in `source`."""
    rarity = WordRarity.among(labels)
    return reranker_files.with_fingerprint(
        RerankerFiles(
            facts=RerankerFacts(
                candidates=candidates,
                features=list(FEATURES),
                trees=len(TREES),
                slope=0.8,
                intercept=-1.5,
                unknown_rarity=rarity.unknown,
                predictor=predictor,
            ),
            trees=write_trees(source / "trees.onnx"),
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
