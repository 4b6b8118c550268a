"""`read` returns what `write` wrote, in both formats, packed and plain."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData, InvalidInput
from service.core.text_identity import distinct_aliases
from tests.support.tiny.training import tiny_dataset, with_colour_metadata
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, Propensity, Split, Texts
from training.datasets.lf_xmc.folder import Layout

# Separators at which str.splitlines would split, quotes, and characters that JSON escapes.
awkward = st.sampled_from(["\u2028", "\x0c", '"', "\\", "\u00e9", "\U0001f600", "\t", " ", "a"])
one_line = st.text(
    awkward | st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\ufeff")
)
relevances = st.just(0.0) | st.floats(min_value=2.0**-140, max_value=2.0**127, width=32)


@st.composite
def texts(draw: st.DrawFn) -> Texts:
    filled = one_line.filter(lambda text: bool(text.strip()))
    uids = draw(st.lists(filled, min_size=1, max_size=4, unique=True))
    return Texts(uids=tuple(uids), texts=tuple(draw(filled) for _ in uids))


def aliases_of(text: str) -> st.SearchStrategy[tuple[str, ...]]:
    """Draw aliases of a label with this text."""
    filled = st.text(max_size=3).map(str.strip).filter(bool)
    return st.lists(filled, max_size=3).map(lambda drawn: distinct_aliases(text, drawn))


@st.composite
def datasets(draw: st.DrawFn, *, with_metadata: bool) -> Dataset:
    labels = draw(texts())
    metadata = draw(texts()) if with_metadata else None

    def linked(rows: int) -> csr_matrix | None:
        if metadata is None:
            return None
        return csr_matrix(draw(arrays(bool, (rows, len(metadata))))).astype(np.float32)

    def split() -> Split:
        instances = draw(texts())
        shape = (len(instances), len(labels))
        return Split(
            instances=instances,
            labels_of=csr_matrix(draw(arrays(np.float32, shape, elements=relevances))),
            filtered=csr_matrix(draw(arrays(bool, shape))),
            metadata_of=linked(shape[0]),
        )

    values = st.text(max_size=3) | st.booleans() | st.integers(-(2**53), 2**53)
    lists = st.lists(st.text(max_size=3), max_size=3).map(tuple)
    fields = st.dictionaries(st.text(max_size=3), values | lists, max_size=3)
    return Dataset(
        name=draw(st.text(st.characters(exclude_categories=["Cs"]))),
        train=split(),
        test=split(),
        labels=labels,
        propensity=Propensity(a=0.6, b=2.6),
        fields=draw(st.sampled_from([("title",), ("title", "content")])),
        label_metadata=linked(len(labels)),
        metadata=metadata,
        label_fields=draw(st.none() | st.tuples(*[fields] * len(labels))),
        label_aliases=draw(st.none() | st.tuples(*map(aliases_of, labels.texts))),
        source="made up",
    )


def assert_equal(left: Dataset, right: Dataset) -> None:
    for name in (
        *("name", "labels", "propensity", "fields", "metadata", "source"),
        *("label_fields", "label_aliases"),
    ):
        assert getattr(left, name) == getattr(right, name), name
    assert_same_matrix(left.label_metadata, right.label_metadata)
    for a, b in ((left.train, right.train), (left.test, right.test)):
        assert a.instances == b.instances
        assert_same_matrix(a.labels_of, b.labels_of)
        assert_same_matrix(a.filtered, b.filtered)
        assert_same_matrix(a.metadata_of, b.metadata_of)


def assert_same_matrix(left: csr_matrix | None, right: csr_matrix | None) -> None:
    if left is None or right is None:
        assert left is right
        return
    assert (left.shape, left.dtype) == (right.shape, right.dtype)
    assert right.indices.dtype == np.int32
    assert np.array_equal(left.toarray(), right.toarray())


@pytest.mark.parametrize("layout", ["json", "sparse"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back(layout: Layout, data: st.DataObject) -> None:
    dataset = data.draw(datasets(with_metadata=layout == "json"))
    with tempfile.TemporaryDirectory() as folder:
        lf_xmc.write(dataset, Path(folder) / "out", layout=layout)
        assert_equal(dataset, lf_xmc.read(Path(folder) / "out"))


def labelled(text: str) -> Dataset:
    """Return the tiny data set with another text of its first label."""
    dataset = tiny_dataset()
    texts = (text, *dataset.labels.texts[1:])
    return replace(dataset, labels=replace(dataset.labels, texts=texts))


def test_equal_data_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        lf_xmc.write(tiny_dataset(), tmp_path / name)
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_an_existing_target_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with pytest.raises(InvalidData, match="exists already"):
        lf_xmc.write(tiny_dataset(), tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine"]


@pytest.mark.parametrize("text", ["a\nb", "a\rb"])
def test_a_failed_write_leaves_nothing(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match="label row 0 contains a line break"):
        lf_xmc.write(labelled(text), tmp_path / "out", layout="sparse")
    assert list(tmp_path.iterdir()) == []


def test_the_json_form_keeps_line_breaks_and_the_sparse_one_has_no_metadata(tmp_path: Path) -> None:
    lf_xmc.write(labelled("a\r\nb"), tmp_path / "new" / "set")
    assert lf_xmc.read(tmp_path / "new" / "set").labels.texts[0] == "a\r\nb"
    with pytest.raises(InvalidInput, match="cannot store metadata"):
        lf_xmc.write(with_colour_metadata(tiny_dataset()), tmp_path / "out", layout="sparse")
