"""Parity: a graph passes if its vectors are close enough to torch's."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from export.encoder.parity import (
    TOP,
    Parity,
    Sample,
    Tolerance,
    best_keys,
    draw_sample,
    measure,
    precision_at_1,
)
from service.core.encoding.encoder import encode
from service.core.errors import InvalidInput, ParityError
from service.core.types import Role
from tests.support.tiny.bundles import Catalogue
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.tiny.export import tiny_dataset
from training.datasets.dataset import Dataset

EXACT = Parity(component=0.0, cosine=1.0, overlap=1.0, torch_precision=80.0, precision=80.0)


def dataset(relevance: np.ndarray) -> Dataset:
    """Return test rows "query 0", ... and labels "label 0", ... with this relevance [n, L]."""
    labels = [f"label {column}" for column in range(relevance.shape[1])]
    instances = {
        f"query {row}": [labels[column] for column in np.flatnonzero(line)]
        for row, line in enumerate(relevance)
    }
    return tiny_dataset(
        Catalogue(labels=dict(zip(labels, labels, strict=True)), instances=instances)
    )


# The bounds ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "value", "named"),
    [
        ("component", 1e-4, None),
        ("cosine", 0.98, None),
        ("overlap", 0.80, None),
        ("precision", 78.0, None),
        ("precision", 95.0, None),  # better than torch is allowed
        ("component", 2e-4, "fp32 component by 2.00e-04"),
        ("cosine", 0.97, r"mean cosine 0\.9700"),
        ("overlap", 0.79, r"top-10 overlap 0\.790"),
        ("precision", 77.9, r"P@1 77\.90 against 80\.00"),
        ("precision", float("nan"), "P@1"),
    ],
)
def test_a_difference_beyond_a_bound_is_named(figure: str, value: float, named: str | None) -> None:
    parity = replace(EXACT, **{figure: value})
    if named is None:
        parity.check(Tolerance())
    else:
        with pytest.raises(ParityError, match=named):
            parity.check(Tolerance())


def test_metrics_for_the_manifest_are_in_percent() -> None:
    assert EXACT.as_metrics() == {
        "parity.fp32_max_component": 0.0,
        "parity.cosine_mean": 1.0,
        "parity.top10_overlap": 100.0,
        "parity.sample_P@1_torch": 80.0,
        "parity.sample_P@1": 80.0,
    }


# Measuring -------------------------------------------------------------------------------


@dataclass
class Reference:
    """Replaces a torch encoder by the trigram encoder, with the same method `encode`."""

    encoder: TrigramEncoder = field(default_factory=TrigramEncoder)
    max_tokens = 32

    def encode(self, texts: list[str], *, role: Role) -> np.ndarray:
        return encode(self.encoder, texts, role=role)


class Noisy(TrigramEncoder):
    """Adds noise to each component, uniform in [-noise, noise], before normalizing."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise = noise

    def embed(self, tokens: list[list[int]], *, together: bool = False) -> np.ndarray:
        vectors = super().embed(tokens, together=together)
        drawn = np.random.default_rng(len(tokens)).uniform(-1, 1, vectors.shape)
        vectors = (vectors + self.noise * drawn).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class WrongLabels(TrigramEncoder):
    """A graph that is right for queries and wrong for labels, as if a prompt were missing."""

    def tokenize(self, texts: list[str], *, role: Role) -> list[list[int]]:
        shown = [f"passage: {text}" for text in texts] if role is Role.LABEL else texts
        return super().tokenize(shown, role=role)


class NotANumber(TrigramEncoder):
    """A graph that returns nan for short texts."""

    def embed(self, tokens: list[list[int]], *, together: bool = False) -> np.ndarray:
        vectors = super().embed(tokens, together=together)
        vectors[[len(trigrams) < 20 for trigrams in tokens]] = np.nan
        return vectors


SAMPLE = Sample(
    queries=[f"red shoes number {number}" for number in range(20)],
    keys=[f"shoes number {number}" for number in range(40)],
    positives=[frozenset([number]) for number in range(20)],
)


def measured(*, fp32: TrigramEncoder, exported: TrigramEncoder) -> Parity:
    return measure(SAMPLE, reference=Reference(), fp32=fp32, exported=exported, threads=2)


def test_an_equal_graph_has_no_differences_and_small_noise_is_within_tolerance() -> None:
    parity = measured(fp32=TrigramEncoder(), exported=TrigramEncoder())
    assert parity.component == 0.0
    assert parity.cosine == pytest.approx(1.0)
    assert (parity.overlap, parity.precision) == (1.0, parity.torch_precision)
    parity.check(Tolerance())
    noisy = measured(fp32=TrigramEncoder(), exported=Noisy(0.01))
    assert 0.99 < noisy.cosine < 1.0
    noisy.check(Tolerance(overlap=0.5, precision=50.0))


@pytest.mark.parametrize(
    ("fp32", "exported", "named"),
    [
        (Noisy(0.01), TrigramEncoder(), "fp32 component"),
        (WrongLabels(), TrigramEncoder(), "fp32 component"),
        (NotANumber(), TrigramEncoder(), "fp32 component by nan"),
        (TrigramEncoder(), NotANumber(), "mean cosine nan"),
        (TrigramEncoder(), Noisy(2.0), "mean cosine"),
        (TrigramEncoder(), WrongLabels(), "mean cosine"),
    ],
)
def test_a_wrong_graph_is_refused(
    fp32: TrigramEncoder, exported: TrigramEncoder, named: str
) -> None:
    with pytest.raises(ParityError, match=named):
        measured(fp32=fp32, exported=exported).check(Tolerance())


def test_best_keys_and_precision_by_hand() -> None:
    """The best keys of the last queries are 4 and 2; only the first is a positive of its query."""
    keys = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], np.float32)
    queries = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    assert best_keys(queries, keys).tolist() == [[0, 2, 1], [1, 2, 0]]
    assert best_keys(np.ones((1, 1)), np.arange(30.0).reshape(30, 1)).shape == (1, TOP)
    best = np.array([[4, 1], [2, 3]])
    assert precision_at_1(best, [frozenset([4]), frozenset([3])]) == 50.0


# The sample ------------------------------------------------------------------------------


@settings(max_examples=60)
@given(data=st.data())
def test_a_sample_holds_test_rows_with_their_labels(data: st.DataObject) -> None:
    rows = data.draw(st.integers(min_value=1, max_value=8))
    labels = data.draw(st.integers(min_value=1, max_value=8))
    cells = st.lists(st.booleans(), min_size=rows * labels, max_size=rows * labels)
    relevance = np.array(data.draw(cells)).reshape(rows, labels)
    assume(relevance.any())
    size = data.draw(st.integers(min_value=1, max_value=20))
    drawn = draw_sample(dataset(relevance), size=size)
    assert len(drawn.queries) == len(drawn.positives) <= max(1, size // 4)
    assert len(set(drawn.queries)) == len(drawn.queries)
    assert len(set(drawn.keys)) == len(drawn.keys) == min(size, labels)
    for query, positives in zip(drawn.queries, drawn.positives, strict=True):
        wanted = relevance[int(query.split()[1])]
        assert wanted.any()
        kept = {column for column in np.flatnonzero(wanted) if f"label {column}" in drawn.keys}
        assert {int(drawn.keys[place].split()[1]) for place in positives} == kept


def test_a_sample_keeps_the_labels_of_its_queries_before_others() -> None:
    """Forty rows have one of eighty labels each; the sample has ten queries and their labels."""
    relevance = np.zeros((40, 80))
    relevance[np.arange(40), np.arange(40)] = 1
    drawn = draw_sample(dataset(relevance), size=40)
    assert len(drawn.queries) == 10
    assert all(len(positives) == 1 for positives in drawn.positives)
    assert drawn == draw_sample(dataset(relevance), size=40)
    assert drawn != draw_sample(dataset(relevance), size=40, seed=1)


def test_without_a_labelled_test_row_there_is_no_sample() -> None:
    with pytest.raises(InvalidInput, match="outdoor goods has no labelled test row"):
        draw_sample(dataset(np.zeros((3, 2))), size=20)


@pytest.mark.parametrize("role", [Role.QUERY, Role.LABEL])
def test_one_vector_for_all_texts_of_a_role_is_refused(role: Role) -> None:
    """Torch and the graphs agree on it, so no measure of parity notices."""

    class Blind(Reference):
        def encode(self, texts: list[str], *, role: Role) -> np.ndarray:
            return super().encode(
                ["the prompt"] * len(texts) if role is of_role else texts, role=role
            )

    of_role = role
    with pytest.raises(InvalidInput, match=rf"all \d+ texts of a {role.value} in the sample the s"):
        measure(
            SAMPLE, reference=Blind(), fp32=TrigramEncoder(), exported=TrigramEncoder(), threads=1
        )
