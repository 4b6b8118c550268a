"""Parabel by Omikuji: a few balanced label trees of linear classifiers over TF-IDF.

Prabhu et al. (2018), "Parabel: Partitioned Label Trees for Extreme Classification"; Omikuji is an
independent implementation in Rust. The random generator of its clustering takes no seed, so two
runs differ by a few tenths of a percent.

Shapes: N rows, F features, L labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import omikuji
from pydantic import Field
from pydantic.dataclasses import dataclass
from scipy.sparse import csr_matrix

from service.core.config import STRICT, Count, Natural, Positive
from service.core.files.lines import write_lines
from training.hardware import versions
from training.lab.peers import PeerTrainingData
from training.lab.peers.features import FeatureSettings, learn_features
from training.lab.peers.ranking import Ranked, Ranking, padded


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(FeatureSettings):
    """Omikuji's defaults, which are Parabel's: three trees, leaves of up to 100 labels.

    If `threads` is 0, all cores are used.
    """

    trees: Count = 3
    leaf: Annotated[int, Field(ge=2)] = 100  # most labels of a leaf
    loss: Literal["hinge", "log"] = "hinge"
    cost: Positive = 1.0  # LIBLINEAR's C
    tolerance: Positive = 0.1
    iterations: Count = 20
    least_weight: Annotated[float, Field(ge=0.0)] = 0.1  # smaller weights are dropped
    beam: Count = 10
    threads: Natural = 0


def train(data: PeerTrainingData, settings: Settings, *, folder: Path) -> Ranking:
    """Train the trees on TF-IDF features of the training texts."""
    features = learn_features(data.texts, settings)
    with TemporaryDirectory() as temporary:
        file = Path(temporary) / "train.txt"
        write_lines(file, data_lines(features.of(data.texts), data.labels_of))
        model = omikuji.Model.train_on_data(
            str(file), hyper_param=parameters(settings), n_threads=settings.threads
        )

    def rank(texts: Sequence[str], top_k: int) -> Ranked:
        answers = (
            model.predict(pairs, beam_size=settings.beam, top_k=top_k)
            for pairs in entries(features.of(texts))
        )
        return padded(([label for label, _ in answer] for answer in answers), top_k=top_k)

    return Ranking(method="classifiers", rank=rank, libraries=versions("omikuji", "scikit-learn"))


def parameters(settings: Settings) -> Any:
    """Convert the settings to the library's form."""
    chosen = omikuji.Model.default_hyper_param()
    chosen.n_trees = settings.trees
    chosen.min_branch_size = settings.leaf
    chosen.linear_loss_type = omikuji.LossType[settings.loss.upper()].value
    chosen.linear_c = settings.cost
    chosen.linear_eps = settings.tolerance
    chosen.linear_max_iter = settings.iterations
    chosen.linear_weight_threshold = settings.least_weight
    return chosen


def data_lines(features: csr_matrix, labels_of: csr_matrix) -> Iterator[bytes]:
    """The public repository's older text form: `N F L`, then `label,... feature:value ...`."""
    yield b"%d %d %d" % (*features.shape, labels_of.shape[1])
    labels = (labels_of.indices[start:stop].tolist() for start, stop in pairwise(labels_of.indptr))
    for row_labels, pairs in zip(labels, entries(features), strict=True):
        values = " ".join(f"{feature}:{value:.7g}" for feature, value in pairs)
        yield f"{','.join(map(str, row_labels))} {values}".encode()


def entries(features: csr_matrix) -> Iterator[list[tuple[int, float]]]:
    """Each row's (feature, value), features ascending."""
    for start, stop in pairwise(features.indptr):
        columns, values = features.indices[start:stop], features.data[start:stop]
        yield list(zip(columns.tolist(), values.tolist(), strict=True))
