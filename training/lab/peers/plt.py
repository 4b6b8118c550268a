"""Probabilistic label trees by napkinXC: logistic classifiers at the nodes of k-means trees.

Jasinska-Kobus et al. (2020), "Probabilistic Label Trees for Extreme Multi-label Classification".
Prediction finds the exact top labels of each tree. The seed affects only the trees; LIBLINEAR's
generator takes none, so two runs differ by a few hundredths of a percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from napkinxc.models import PLT
from pydantic import Field
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Count, Natural, Positive
from training.hardware import versions
from training.lab.peers import PeerTrainingData
from training.lab.peers.features import FeatureSettings, learn_features
from training.lab.peers.ranking import Ranked, Ranking, padded

MODEL = "model"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(FeatureSettings):
    """The library's defaults, except for three trees instead of one, as in the paper's ensembles.

    If `threads` is 0, all cores are used.
    """

    trees: Count = 3
    branches: Annotated[int, Field(ge=2)] = 2
    leaf: Annotated[int, Field(ge=2)] = 100  # most labels of a leaf
    loss: Literal["log", "l2"] = "log"
    cost: Positive = 10.0  # LIBLINEAR's C
    tolerance: Positive = 0.1
    least_weight: Annotated[float, Field(ge=0.0)] = 0.1  # smaller weights are dropped
    threads: Natural = 0
    seed: Natural = 0


def train(data: PeerTrainingData, settings: Settings, *, folder: Path) -> Ranking:
    """Build the trees and train the classifiers of all nodes, kept in `folder`/model."""
    features = learn_features(data.texts, settings)
    model = PLT(
        str(folder / MODEL),
        tree_type="hierarchicalKmeans",
        arity=settings.branches,
        max_leaves=settings.leaf,
        loss=settings.loss,
        liblinear_c=settings.cost,
        liblinear_eps=settings.tolerance,
        weights_threshold=settings.least_weight,
        ensemble=settings.trees,
        threads=settings.threads,
        seed=settings.seed,
    )
    (folder / MODEL).mkdir(parents=True, exist_ok=True)
    model.fit(features.of(data.texts), data.labels_of)

    def rank(texts: Sequence[str], top_k: int) -> Ranked:
        answers = model.predict_proba(features.of(texts), top_k=top_k)
        # An ensemble that runs out of labels fills the row with label 0 at probability 0.
        rows = ([label for label, chance in answer if chance > 0.0] for answer in answers)
        return padded(rows, top_k=top_k)

    return Ranking(method="classifiers", rank=rank, libraries=versions("napkinxc", "scikit-learn"))
