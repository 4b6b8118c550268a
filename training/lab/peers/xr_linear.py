"""PECOS XR-Linear: one hierarchical label tree of linear rankers over TF-IDF.

Yu et al. (2022), "PECOS: Prediction for Enormous and Correlated Output Spaces", Algorithm 2. The
tree is built over label features: the mean of a label's training rows (PIFA) and the TF-IDF of the
label's text, as the library recommends for labels with texts.

The last release of `libpecos` needs numpy 1 and an old scipy, which Keymatch does not support. It
therefore runs in a separate interpreter (the setting `python`) on matrices in files; see
`xr_linear_worker.py`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from scipy.sparse import csr_matrix, load_npz, save_npz

from service.core.config import STRICT, Count, Natural, Positive
from service.core.errors import InvalidConfig
from training.hardware import versions
from training.lab.peers import PeerTrainingData, xr_linear_worker
from training.lab.peers.features import FeatureSettings, learn_features
from training.lab.peers.ranking import Ranked, Ranking, ranked_scores

MODEL = "model"
INSTALL = (
    "it needs numpy 1 and a separate environment: python3 -m venv pecos;"
    " pecos/bin/pip install 'numpy<2' 'scipy<1.14' scikit-learn;"
    " pecos/bin/pip install --no-deps 'libpecos>=1.2.8,<2'; then --set python=pecos/bin/python"
)
VERSION = """
from importlib.metadata import version
import pecos.xmc.xlinear.model, scipy.sparse
scipy.sparse.sputils.get_index_dtype  # gone from the scipy that Keymatch needs
print(version("libpecos"))
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(FeatureSettings):
    """The library's defaults: 16 branches, leaves of up to 100 labels, squared hinge loss.

    `python` is an interpreter that has `libpecos`. `negatives` selects a ranker's negative rows:
    tfn takes the rows of the same cluster, man those that the level above confuses with it. If
    `threads` is 0, all cores are used.
    """

    python: str = "pecos/bin/python"
    branches: Annotated[int, Field(ge=2)] = 16
    leaf: Annotated[int, Field(ge=2)] = 100  # most labels of a leaf
    negatives: Literal["tfn", "man", "tfn+man"] = "tfn"
    cost: Positive = 1.0  # LIBLINEAR's C
    least_weight: Annotated[float, Field(ge=0.0)] = 0.1  # smaller weights are dropped
    beam: Count = 20
    threads: Natural = 0
    seed: Natural = 0


def train(data: PeerTrainingData, settings: Settings, *, folder: Path) -> Ranking:
    """Cluster the labels and train the rankers of all levels, kept in `folder`/model.

    Raises `InvalidConfig` if `python` has no libpecos.
    """
    library = library_version(settings.python)
    features = learn_features(data.texts, settings)
    folder.mkdir(parents=True, exist_ok=True)
    model = folder.absolute() / MODEL
    with TemporaryDirectory() as temporary:
        files = Path(temporary)
        save_npz(files / "features.npz", features.of(data.texts))
        save_npz(files / "labels_of.npz", data.labels_of)
        save_npz(files / "label_features.npz", features.of(data.label_texts))
        work("train", settings, files=files, model=model)

    def rank(texts: Sequence[str], top_k: int) -> Ranked:
        with TemporaryDirectory() as temporary:
            files = Path(temporary)
            save_npz(files / "features.npz", features.of(texts))
            work("rank", settings, files=files, model=model, top_k=top_k)
            return ranked_scores(csr_matrix(load_npz(files / "scores.npz")), top_k=top_k)

    return Ranking(
        method="classifiers",
        rank=rank,
        libraries={"libpecos": library, **versions("scikit-learn")},
    )


def library_version(python: str) -> str:
    """The version of libpecos; `InvalidConfig` says how to install it if it is missing."""
    try:
        done = subprocess.run([python, "-c", VERSION], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InvalidConfig(
            f"peer xr-linear: python: {python!r} has no libpecos; {INSTALL}"
        ) from error
    return done.stdout.strip()


def work(task: str, settings: Settings, *, files: Path, model: Path, top_k: int = 0) -> None:
    """Run a task of the worker in the other interpreter, on the matrices in `files`."""
    numbers = json.dumps(asdict(settings) | {"top_k": top_k})
    worker = str(Path(xr_linear_worker.__file__))
    subprocess.run([settings.python, worker, task, str(files), str(model), numbers], check=True)
