"""The encoder that `make serve` uses is committed, complete, and good enough."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from scipy.sparse import csr_matrix

from export.bundle.build import BundleOptions, export_bundle
from export.commands.options import PredictorOptions
from export.exported_encoder import open_exported
from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.types import Role
from training.datasets import moby
from training.datasets.dataset import Dataset, Split, Texts
from training.evaluation.evaluation import open_evaluation

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/demo/encoder"
FLOORS = {"P@1": 41.0, "P@5": 30.0}  # percent
LABELS, TRAINING_ROWS, TEST_ROWS = 1_500, 1_500, 300  # size of the sample


def test_it_is_small_and_its_card_says_what_it_scores() -> None:
    exported = open_exported(FOLDER)
    origin, card = exported.description.origin, (FOLDER / "README.md").read_text()
    assert exported.graph.stat().st_size <= 25_000_000
    assert exported.description.encoder.quantization == "static-int8"
    assert exported.description.encoder.batch_invariant
    assert origin is not None
    assert (origin.recipe, origin.dataset) == ("demo-moby", "moby")
    for metric in ("P@1", "P@5", "R@100", "PSP@5"):
        assert f"| {metric} | {origin.metrics[metric]:.4g} |" in card


def test_it_finds_the_synonyms_of_unseen_words(tmp_path: Path) -> None:
    """Index and evaluate a sample of the thesaurus with the code that `make serve` uses.

    Measured: P@1 46.0, P@5 33.8. The floors leave room for another CPU's int8 arithmetic.
    """
    dataset, exported = sample(moby.load()), open_exported(FOLDER)
    defaults = exported.description.predictor
    predictor = PredictorOptions().over(defaults)
    options = BundleOptions(predictor=predictor, hold_out_test=True)
    export_bundle(exported, dataset, tmp_path / "sample", options=options, console=Console())
    evaluation = open_evaluation(
        open_bundle(tmp_path / "sample"),
        dataset,
        depth=predictor.depth,
        exact=True,
        threads=2,
        report=lambda *_progress: None,
    )
    [row] = evaluation.rows([predictor.memorization])
    for metric, floor in FLOORS.items():
        assert row.metrics[metric] >= floor, metric


def sample(dataset: Dataset, *, seed: int = 0) -> Dataset:
    """Keep the most frequent labels, and draw rows that have at least one of them."""
    frequency = dataset.train.labels_of.getnnz(axis=0)
    columns = np.sort(np.argsort(-frequency, kind="stable")[:LABELS])
    generator = np.random.default_rng(seed)

    def split(whole: Split, count: int) -> Split:
        labels_of = csr_matrix(whole.labels_of[:, columns])
        rows = np.sort(generator.permutation(np.flatnonzero(labels_of.getnnz(axis=1)))[:count])
        filtered = csr_matrix(whole.filtered[:, columns][rows])
        return Split(
            instances=chosen(whole.instances, rows), labels_of=labels_of[rows], filtered=filtered
        )

    return replace(
        dataset,
        name="moby sample",
        train=split(dataset.train, TRAINING_ROWS),
        test=split(dataset.test, TEST_ROWS),
        labels=chosen(dataset.labels, columns),
    )


def chosen(texts: Texts, rows: np.ndarray) -> Texts:
    return Texts(
        uids=tuple(texts.uids[row] for row in rows), texts=tuple(texts.texts[row] for row in rows)
    )


def test_synonyms_lie_near_each_other() -> None:
    exported = open_exported(FOLDER)
    encoder = OnnxEncoder(FOLDER, exported.description.encoder)
    words = ["big", "large", "happy", "joyful", "angry", "furious", "buy", "purchase"]
    vectors = encode(encoder, words, role=Role.QUERY)
    similarities = vectors @ vectors.T - 2.0 * np.eye(len(words))
    assert np.argmax(similarities, axis=1).tolist() == [1, 0, 3, 2, 5, 4, 7, 6]


def test_serving_it_needs_no_torch() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    makefile = (ROOT / "Makefile").read_text()
    assert "$(VENV)/.serve: EXTRAS := cpu,demo\n" in makefile
    assert "ENCODER ?= deploy/demo/encoder\n" in makefile
    needed = " ".join([*extras["cpu"], *extras["demo"]])
    for heavy in ("torch", "transformers", "minilm"):
        assert heavy not in needed
