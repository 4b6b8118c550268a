"""The encoder that `make serve` stands on: committed, whole, and worth its place."""

import tomllib
from pathlib import Path

import numpy as np

from export.exported_encoder import open_exported
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.types import Role

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/demo/encoder"
# What the demo is held to on the test rows of the Moby thesaurus.
GOALS = {"P@1": 52.0, "P@5": 47.0, "R@100": 36.0, "PSP@5": 25.0}


def test_it_is_small_and_whole_and_says_what_it_scores() -> None:
    exported = open_exported(FOLDER)
    facts, origin = exported.description.encoder, exported.description.origin
    assert exported.graph.stat().st_size <= 25_000_000
    assert facts.quantization == "int8"
    assert origin is not None
    assert (origin.recipe, origin.dataset) == ("demo-moby", "moby")
    for metric, goal in GOALS.items():
        assert origin.metrics[metric] >= goal
        assert f"| {metric} | {origin.metrics[metric]:.4g} |" in (FOLDER / "README.md").read_text()


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
