"""Hidden labels are removed from the training rows, kept for the evaluation, and measured."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from service.command_line import run
from service.core.errors import InvalidData, InvalidInput
from tests.support.tiny.training import tiny_dataset
from training.__main__ import app
from training.datasets import lf_xmc
from training.lab import novel_split
from training.lab.novel_evaluation import novel_recalls
from training.lab.novel_split import NovelSplit


@pytest.fixture
def split() -> NovelSplit:
    return novel_split.split_novel(tiny_dataset(), fraction=0.25, seed=0)


def test_no_trace_of_a_hidden_label_is_seen(split: NovelSplit) -> None:
    hidden = set(split.everything.labels.uids[split.facts.seen :])
    assert len(hidden) == split.facts.novel == 4
    assert not hidden & set(split.seen.labels.uids)
    assert (np.diff(split.seen.train.labels_of.indptr) > 0).all()
    assert split.seen.train.labels_of.shape[1] == split.facts.seen == 12


def test_what_is_seen_keeps_its_pairs_and_columns(split: NovelSplit) -> None:
    whole, everything = tiny_dataset(), split.everything
    assert everything.labels.uids[: split.facts.seen] == split.seen.labels.uids
    assert sorted(everything.labels.uids) == sorted(whole.labels.uids)
    for row, text in enumerate(everything.test.instances.texts):
        own = {everything.labels.texts[column] for column in everything.test.labels_of[row].indices}
        assert own == set(text.split())
    for row, text in enumerate(split.seen.train.instances.texts):
        own = {
            split.seen.labels.texts[column] for column in split.seen.train.labels_of[row].indices
        }
        assert own == set(text.split()) & set(split.seen.labels.texts)


def test_the_fields_of_labels_follow_them() -> None:
    whole = tiny_dataset()
    fields = tuple({"own": uid} for uid in whole.labels.uids)
    aliases = tuple((f"code {uid}",) for uid in whole.labels.uids)
    whole = replace(whole, label_fields=fields, label_aliases=aliases)
    split = novel_split.split_novel(whole, fraction=0.25, seed=0)
    for part in (split.seen, split.everything):
        assert part.label_fields == tuple({"own": uid} for uid in part.labels.uids)
        assert part.label_aliases == tuple((f"code {uid}",) for uid in part.labels.uids)


def test_one_query_is_revealed_of_each_hidden_label(split: NovelSplit) -> None:
    train = tiny_dataset().train.instances.texts
    revealed = split.revealed()
    for column, query in zip(split.novel.tolist(), revealed, strict=True):
        assert split.everything.labels.texts[column] in query.split()
        assert query in train


def test_the_same_seed_hides_the_same_labels_and_is_read_as_written(
    split: NovelSplit, tmp_path: Path
) -> None:
    again = novel_split.split_novel(tiny_dataset(), fraction=0.25, seed=0)
    other = novel_split.split_novel(tiny_dataset(), fraction=0.25, seed=1)
    assert again.everything.labels.uids == split.everything.labels.uids
    assert again.revealed() == split.revealed()
    assert other.everything.labels.uids != split.everything.labels.uids
    novel_split.write(split, tmp_path / "split")
    read = novel_split.read(tmp_path / "split")
    assert read.facts == split.facts
    assert read.revealed() == split.revealed()
    assert read.everything.labels == split.everything.labels
    assert (read.seen.train.labels_of != split.seen.train.labels_of).nnz == 0


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan"), 0.01])
def test_a_fraction_that_splits_nothing_is_refused(fraction: float) -> None:
    with pytest.raises(InvalidInput, match="fraction"):
        novel_split.split_novel(tiny_dataset(), fraction=fraction, seed=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "split novel"),
        (lambda _: "{", "novel.json"),
        (lambda _: "{}", "format: "),
        (
            lambda text: text.replace('"novel": 4', '"novel": 3'),
            "holds 16 labels and 4 one-shot queries",
        ),
        (
            lambda text: text.replace("novel-split", "bundle"),
            "is keymatch-bundle 1, not keymatch-novel-split 1",
        ),
    ],
)
def test_damaged_facts_are_named(
    content: Callable[[str], str] | None, message: str, split: NovelSplit, tmp_path: Path
) -> None:
    novel_split.write(split, tmp_path / "split")
    facts = tmp_path / "split" / "novel.json"
    if content is None:
        facts.unlink()
    else:
        facts.write_text(content(facts.read_text()))
    with pytest.raises(InvalidData, match=message):
        novel_split.read(tmp_path / "split")


def test_damaged_data_are_named(split: NovelSplit, tmp_path: Path) -> None:
    novel_split.write(split, tmp_path / "split")
    rows = tmp_path / "split" / "all" / "trn.json.gz"
    lines = gzip.decompress(rows.read_bytes()).replace(b"[12]", b"[13]")
    rows.write_bytes(gzip.compress(lines))
    with pytest.raises(InvalidData, match="exactly one query for each novel label"):
        novel_split.read(tmp_path / "split")
    (tmp_path / "split" / "seen").rename(tmp_path / "gone")
    with pytest.raises(InvalidData, match="is not a folder"):
        novel_split.read(tmp_path / "split")


def test_the_command(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "novel"
    command = ["split", "novel", "--data", str(data), "--out", str(out), "--fraction", "0.25"]
    assert run(app, command) == 0
    assert f"{out}: 12 seen labels and 4 novel labels" in capfd.readouterr().out
    assert len(lf_xmc.read(out / "seen").labels) == 12

    assert run(app, command) == 2
    assert "exists already" in capfd.readouterr().err


SEEN = 3  # the first 3 of 8 labels
NONE_FILTERED = csr_matrix((3, 8), dtype=bool)
POSITIVES = csr_matrix(
    [
        [1, 0, 0, 1, 1, 0, 0, 0],  # one seen label, two novel ones
        [0, 1, 1, 0, 0, 0, 0, 0],  # only seen labels, so the row does not count
        [0, 0, 0, 0, 0, 0, 0, 1],
    ],
    dtype=bool,
)


def padded(*rows: list[int]) -> NDArray[np.int64]:
    """Return ranked labels [q, 100], filled up with -1 for "no answer"."""
    return np.array([row + [-1] * (100 - len(row)) for row in rows], np.int64)


def test_seen_labels_do_not_count() -> None:
    # Row 0's second novel label is sixth without seen labels; row 2's is not found.
    ranked = padded([0, 3, 1, 2, 5, 4], [1, 2, 0, 3, 4, 5], [0, 1, 2, 3, 4, 5])
    found = novel_recalls(ranked, POSITIVES, NONE_FILTERED, seen=SEEN)
    assert found == pytest.approx({"novel_R@5": 25.0, "novel_R@30": 50.0, "novel_R@100": 50.0})
    assert POSITIVES.nnz == 6  # the argument is unchanged


def test_filtered_labels_move_later_ones_up_and_none_has_no_recall() -> None:
    filtered = csr_matrix(([True], ([0], [1])), shape=(3, 8))
    ranked = padded([0, 3, 1, 2, 5, 4], [1, 2, 0, 3, 4, 5], [7, 1, 2, 3, 4, 5])
    found = novel_recalls(ranked, POSITIVES, filtered, seen=SEEN)
    assert found["novel_R@5"] == pytest.approx(100.0)
    found = novel_recalls(ranked, POSITIVES[[1, 1, 1]], NONE_FILTERED, seen=SEEN)
    assert all(np.isnan(value) for value in found.values())
