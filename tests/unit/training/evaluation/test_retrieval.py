"""Rows that a cluster encodes and searches in parts get the vectors and keys of one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core.bundle.bundle import open_bundle
from service.core.encoding import encoder
from service.core.errors import InvalidConfig
from service.core.label_filter import MOST_VALUES, parse
from service.core.types import RowKind
from tests.support.cluster_here import ClusterHere
from tests.support.tiny.bundles import Catalogue
from tests.support.tiny.export import tiny_dataset
from training.evaluation import retrieval
from training.evaluation.evaluation import Evaluation, open_evaluation
from training.evaluation.retrieval import Elsewhere, Place

CHUNK, PART = 2, 4  # rows
Open = Callable[..., Evaluation]


@pytest.fixture
def bundle(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle()


@pytest.fixture
def evaluate(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """`evaluate(cluster, **options)` opens an evaluation here, or on a cluster."""
    monkeypatch.setattr(retrieval, "_PART_ROWS", PART)
    monkeypatch.setattr(retrieval, "CHUNK_ROWS", CHUNK)
    monkeypatch.setattr(encoder, "_CHUNK_TEXTS", CHUNK)

    def evaluate(cluster: ClusterHere | None = None, **options: Any) -> Evaluation:
        opened, elsewhere = open_bundle(bundle), None
        if cluster is not None:
            place = Place.of(str(bundle), tmp_path / "cache", opened)
            elsewhere = Elsewhere(cluster=cluster, work=tmp_path / "work", place=place)
        chosen = {"depth": 5, "exact": False, "threads": 1, **options}
        nothing = lambda stage, done, total: None  # noqa: E731
        return open_evaluation(
            opened, tiny_dataset(Catalogue()), report=nothing, elsewhere=elsewhere, **chosen
        )

    return evaluate


@pytest.mark.parametrize("options", [{}, {"exact": True}, {"spelling": "auto"}])
def test_parts_equal_the_whole(evaluate: Open, options: dict[str, Any]) -> None:
    here, there = evaluate(**options), evaluate(cluster := ClusterHere(), **options)
    assert np.array_equal(here.vectors, there.vectors)
    for kind in (None, RowKind.LABEL, RowKind.INSTANCE):
        for ours, theirs in zip(here.retrieve(kind), there.retrieve(kind), strict=True):
            assert np.array_equal(ours, theirs)
    lambdas = [0.0, 0.3, 1.0]
    assert [vars(row) for row in here.rows(lambdas)] == [vars(row) for row in there.rows(lambdas)]
    parts = -(-len(here.texts) // PART)
    assert parts > 1
    assert cluster.calls == 4 * parts  # encoding, and three kinds of keys once each


def test_an_interrupted_evaluation_goes_on_by_part(evaluate: Open) -> None:
    whole = evaluate(first := ClusterHere()).retrieve(None)
    parts = first.calls // 2
    with pytest.raises(KeyboardInterrupt):
        evaluate(ClusterHere(most=1), depth=4).retrieve(None)
    again = evaluate(cluster := ClusterHere(), depth=5)
    assert cluster.calls == 0  # the encoded rows are kept
    for ours, theirs in zip(whole, again.retrieve(None), strict=True):
        assert np.array_equal(ours, theirs)
    assert cluster.calls == parts  # the first part of another depth had begun


def test_a_filter_reaches_the_parts(
    make_bundle: Callable[..., Path], evaluate: Open, bundle: Path
) -> None:
    wanted = parse({"none": [{"field": "hue", "exists": True}]}, at="filter", most=MOST_VALUES)
    here, there = (evaluate(cluster, wanted=wanted) for cluster in (None, ClusterHere()))
    for ours, theirs in zip(here.retrieve(None), there.retrieve(None), strict=True):
        assert np.array_equal(ours, theirs)


def test_another_bundle_at_the_place_is_refused(tmp_path: Path, bundle: Path) -> None:
    place = Place(bundle=str(bundle), cache=tmp_path, fingerprint="another")
    with pytest.raises(InvalidConfig, match="is another bundle on a machine of the cluster"):
        retrieval._opened(place)
