"""The second ranking's files: what is written is read, and what does not fit is named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle import reranker_files
from service.core.bundle.bundle import open_bundle
from service.core.bundle.reranker_files import RARITY, TREES, WORDS
from service.core.errors import BundleAltered
from tests.support.tiny.bundles import LABELS, sign_again


@pytest.fixture
def folder(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle(reranked=5)


def test_what_is_written_is_read(folder: Path) -> None:
    files = open_bundle(folder).reranker
    assert files is not None
    assert (files.facts.candidates, len(files.facts.features)) == (5, 23)
    words = {word for text in LABELS.values() for word in text.split()}
    assert len(files.words) == len(files.rarity) == len(words)
    assert files.trees == folder / TREES
    assert reranker_files.with_fingerprint(files).facts == files.facts


def test_the_fingerprint_is_of_facts_trees_and_words(folder: Path) -> None:
    files = open_bundle(folder).reranker
    assert files is not None
    others = [
        replace(files, facts=replace(files.facts, candidates=6)),
        replace(files, words=files.words + np.uint64(1)),
        replace(files, rarity=files.rarity * 2.0),
        replace(files, trees=folder / "encoder.onnx"),
    ]
    prints = {reranker_files.with_fingerprint(one).facts.fingerprint for one in (files, *others)}
    assert len(prints) == len(others) + 1


@pytest.mark.parametrize("name", [TREES, WORDS, RARITY])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    sign_again(folder)
    with pytest.raises(BundleAltered, match=f"{name} is missing"):
        open_bundle(folder)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (WORDS, np.zeros(3), "expected uint64"),
        (RARITY, np.zeros(3), "holds float64 \\[3\\]"),
        (WORDS, np.arange(12, dtype=np.uint64)[::-1], "not ascending"),
        (WORDS, np.zeros((12, 1), np.uint64), "holds"),
    ],
)
def test_what_does_not_fit_is_named(
    folder: Path, name: str, array: np.ndarray, message: str
) -> None:
    np.save(folder / name, array)
    sign_again(folder)
    with pytest.raises(BundleAltered, match=message):
        open_bundle(folder)
