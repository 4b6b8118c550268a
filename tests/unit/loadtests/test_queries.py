"""Queries of a benchmark: where they are read from, and how they are drawn."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from loadtests.queries import distinct, read_queries, zipf
from service.core.errors import InvalidInput


def test_queries_come_from_the_bundle_or_a_file(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    assert {"trail footwear", "camping tent"} <= set(read_queries(tiny_bundle_folder))
    lines, titles = tmp_path / "queries.txt", tmp_path / "queries.json"
    lines.write_text("one\ntwo\n\none\n")
    titles.write_text('{"title": "one", "uid": "1"}\n{"title": "two"}\n')
    assert read_queries(tmp_path, lines) == read_queries(tmp_path, titles) == ["one", "two"]
    (tmp_path / "empty.txt").touch()
    with pytest.raises(InvalidInput, match="holds no query"):
        read_queries(tmp_path, tmp_path / "empty.txt")


def test_distinct_queries_repeat_only_after_all_were_drawn() -> None:
    texts = [str(number) for number in range(50)]
    twice = list(islice(distinct(texts, seed=3), 100))
    assert sorted(twice[:50]) == sorted(twice[50:]) == sorted(texts)


def test_zipf_draws_the_second_rank_half_as_often_as_the_first() -> None:
    texts = [str(number) for number in range(100)]
    drawn = list(islice(zipf(texts, seed=3), 50_000))
    assert drawn == list(islice(zipf(texts, seed=3), 50_000))
    _, counts = np.unique(drawn, return_counts=True)
    ranked = np.sort(counts)[::-1]
    harmonic = np.sum(1 / np.arange(1, 101))
    assert ranked[0] / len(drawn) == pytest.approx(1 / harmonic, rel=0.05)
    assert ranked[0] / ranked[1] == pytest.approx(2, rel=0.1)
