"""Tables of (query, keyword) rows become data sets: pairs, weights, the split."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.errors import InvalidData, InvalidInput
from tests.support.tiny.tables import (
    FORMATS,
    HEADER,
    ROWS,
    from_table,
    relevance,
    table,
    write_table,
)
from training.datasets import lf_xmc
from training.datasets.pairs import PairOptions
from training.datasets.train_test_split import is_test


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_reads_the_same(tmp_path: Path, ending: str) -> None:
    path = write_table(tmp_path, ending, ROWS, HEADER)
    dataset = from_table(path, query="q", label="k", weight="w", label_id="id", test_fraction=0.5)
    assert dataset.labels.uids == ("7", "8", "9", "10")
    assert dataset.labels.texts == ("shoes", "winter boots", "boots", "hat")
    assert relevance(dataset) == {
        ("red shoes", "shoes"): 3.5,
        ("boots", "winter boots"): 0.25,
        ("hat", "boots"): 1.0,
        ("scarf", "hat"): 3.0,
    }
    assert (dataset.name, dataset.source, dataset.fields) == ("table", path.name, ("title",))


def test_without_weight_and_id(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    dataset = from_table(path, query="q", label="k", test_fraction=0.5)
    assert dataset.labels.uids == dataset.labels.texts
    assert relevance(dataset)["red shoes", "shoes"] == 2.0


def test_a_query_that_is_a_label_is_filtered(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    dataset = from_table(path, query="q", label="k", test_fraction=0.5)
    filtered = set()
    for split in (dataset.train, dataset.test):
        for row, label in zip(*split.filtered.nonzero(), strict=True):
            filtered.add((split.instances.texts[row], dataset.labels.texts[label]))
    assert filtered == {("boots", "boots"), ("hat", "hat")}


def test_exact_pairs_are_kept_on_request(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("q,k\na,a\nb,a\nc,b\n")
    names: dict[str, Any] = {"query": "q", "label": "k", "test_fraction": 0}
    filtering = table(tmp_path / "t.csv", **names)
    keeping = table(tmp_path / "t.csv", **names, keep_exact=True)
    assert (filtering.facts.exact, keeping.facts.exact) == (1, 1)
    assert filtering.dataset.train.filtered.nnz == 2  # (a, a), and (b, b), which is no pair
    assert keeping.dataset.train.filtered.nnz == 0
    assert relevance(keeping.dataset)["a", "a"] == 1.0


def test_the_facts_say_what_was_done(tmp_path: Path) -> None:
    rows = [["a", "b", "2024-01-01"], ["a", "b", "2024-01-03"], ["c", "d", 1704412800]]
    path = write_table(tmp_path, "csv", rows, ["q", "k", "t"])
    facts = table(path, query="q", label="k", time="t", test_fraction=0.5).facts
    assert (facts.rows, facts.rejected, facts.merged, facts.test_only) == (3, 0, 1, 1)
    assert facts.period == (1704067200.0, 1704412800.0)


def test_without_a_test_split(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    dataset = from_table(path, query="q", label="k", test_fraction=0)
    assert (len(dataset.train), len(dataset.test)) == (4, 0)
    assert dataset.test.labels_of.shape == dataset.test.filtered.shape == (0, 4)
    for layout in ("json", "sparse"):
        lf_xmc.write(dataset, tmp_path / layout, layout=layout)
        read = lf_xmc.read(tmp_path / layout)
        assert (len(read.test), read.train.instances) == (0, dataset.train.instances)


def test_the_newest_queries_are_for_test(tmp_path: Path) -> None:
    rows = [[f"query {row}", "label", 1000 - row] for row in range(10)] + [["query 9", "x", 2000]]
    path = write_table(tmp_path, "csv", rows, ["q", "k", "t"])
    dataset = from_table(path, query="q", label="k", time="t", test_fraction=0.3)
    assert set(dataset.test.instances.texts) == {"query 9", "query 0", "query 1"}


def test_old_rows_weigh_less(tmp_path: Path) -> None:
    rows = [["a", "b", 4, "2024-01-01"], ["a", "b", 1, "2024-01-21"], ["c", "b", 2, "2024-01-11"]]
    path = write_table(tmp_path, "csv", rows, ["q", "k", "w", "t"])
    names = {"query": "q", "label": "k", "weight": "w", "time": "t"}
    dataset = from_table(path, **names, test_fraction=0, half_life=10.0)
    assert relevance(dataset) == {("a", "b"): 2.0, ("c", "b"): 1.0}


def test_the_weight_is_scaled_after_it_is_summed(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    names: dict[str, Any] = {"query": "q", "label": "k", "weight": "w", "test_fraction": 0}
    for scale, expected in {"given": 3.5, "binary": 1.0, "log": math.log(4.5)}.items():
        found = relevance(from_table(path, **names, relevance=scale))["red shoes", "shoes"]
        assert found == pytest.approx(expected)


def test_a_half_life_needs_times_and_weights(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    with pytest.raises(InvalidInput, match="needs a column of times: --time"):
        from_table(path, query="q", label="k", half_life=3.0)
    with pytest.raises(InvalidInput, match="positive number of days, not -1"):
        PairOptions(half_life=-1.0)
    with pytest.raises(InvalidInput, match="has no weights that a half-life could change"):
        PairOptions(half_life=1.0, relevance="binary")


def test_one_text_may_have_several_ids_but_not_the_reverse(tmp_path: Path) -> None:
    rows = [["a", "same", 1, "1"], ["b", "same", 1, "2"], ["same", "c", 1, "3"], ["d", "e", 1, "4"]]
    path = write_table(tmp_path, "csv", rows, HEADER)
    dataset = from_table(path, query="q", label="k", label_id="id", test_fraction=0.5)
    assert dataset.labels.texts == ("same", "same", "c", "e")
    assert dataset.train.filtered.nnz + dataset.test.filtered.nnz == 2
    path = write_table(tmp_path, "csv", [*rows, ["f", "other", 1, "1"]], HEADER)
    with pytest.raises(InvalidData, match="'1' has the text 'other', but earlier 'same'"):
        from_table(path, query="q", label="k", label_id="id")


def test_labels_of_test_queries_stay(tmp_path: Path) -> None:
    rows = [[f"query {row}", f"label {row}"] for row in range(40)]
    dataset = from_table(write_table(tmp_path, "csv", rows, ["q", "k"]), query="q", label="k")
    assert len(dataset.labels) == 40
    assert len(dataset.test) == dataset.test.labels_of.nnz > 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), more=st.sets(st.text("xyz", min_size=1), max_size=8))
def test_later_rows_move_no_query(
    tmp_path_factory: pytest.TempPathFactory, seed: int, more: set[str]
) -> None:
    rows = [[f"query {row}", "label"] for row in range(40)]
    sides = []
    for ordered in (rows, [[text, "new"] for text in sorted(more)] + rows[::-1]):
        path = write_table(tmp_path_factory.mktemp("t"), "csv", ordered, ["q", "k"])
        dataset = from_table(path, query="q", label="k", seed=seed, test_fraction=0.4)
        sides.append({text for text in dataset.test.instances.texts if text not in more})
    assert sides[0] == sides[1]


def test_the_split_has_the_fraction_and_follows_the_seed() -> None:
    texts = [f"query {row}" for row in range(4000)]
    zero = [is_test(text, fraction=0.2, seed=0) for text in texts]
    one = [is_test(text, fraction=0.2, seed=1) for text in texts]
    assert 0.17 < sum(zero) / 4000 < 0.23
    assert zero != one
    larger = [is_test(text, fraction=0.3, seed=0) for text in texts]
    assert all(b for a, b in zip(zero, larger, strict=True) if a)


@pytest.mark.parametrize("fraction", [1.0, -0.1, 2.0, float("nan")])
def test_a_fraction_out_of_range(tmp_path: Path, fraction: float) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    with pytest.raises(InvalidInput, match="0 or more and below 1"):
        from_table(path, query="q", label="k", test_fraction=fraction)


@pytest.mark.parametrize(("fraction", "side"), [(1e-9, "test"), (1 - 1e-9, "train")])
def test_an_empty_side(tmp_path: Path, fraction: float, side: str) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    with pytest.raises(InvalidData, match=f"the split leaves {side} empty: 4 queries"):
        from_table(path, query="q", label="k", test_fraction=fraction)
