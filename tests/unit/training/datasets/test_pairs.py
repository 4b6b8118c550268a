"""Tables of (query, keyword) rows become data sets: pairs, weights, metadata, and the split."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from service.core.bundle.bundle import Bundle
from service.core.errors import InvalidData, InvalidInput
from service.core.files.lines import Rejects
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.types import NewLabel
from tests.support.tiny.tables import FORMATS, ROWS, relevance, table, write_table
from tests.support.tiny.training import tiny_dataset
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, Texts
from training.datasets.pairs import FEW_QUERIES, CatalogueFacts, PairOptions, TableData
from training.datasets.tables.catalogue import Catalogue
from training.datasets.train_test_split import is_test, refuse_overlap, split_by_time

Read = Callable[..., TableData]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """`read(rows, columns, ...)` writes rows as a table with these columns, and reads it."""

    def written(
        rows: list[list[Any]] = ROWS, columns: str = "q k w id", ending: str = "csv", **given: Any
    ) -> TableData:
        path = write_table(tmp_path, ending, rows, columns.split())
        return table(path, query="q", label="k", **{"test_fraction": 0, **given})

    return written


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_reads_the_same(read: Read, ending: str) -> None:
    dataset = read(ending=ending, weight="w", label_id="id", test_fraction=0.5).dataset
    assert dataset.labels.uids == ("7", "8", "9", "10")
    assert dataset.labels.texts == ("shoes", "winter boots", "boots", "hat")
    assert relevance(dataset) == {
        ("red shoes", "shoes"): 3.5,
        ("boots", "winter boots"): 0.25,
        ("hat", "boots"): 1.0,
        ("scarf", "hat"): 3.0,
    }
    found = (dataset.name, dataset.source, dataset.fields)
    assert found == ("table", f"table.{ending}", ("title",))


def test_without_weight_and_id_and_filtering_labels_that_are_the_query(read: Read) -> None:
    dataset = read().dataset
    assert dataset.labels.uids == dataset.labels.texts  # both are in lower case
    assert relevance(dataset)["red shoes", "shoes"] == 2.0
    texts, labels = dataset.train.instances.texts, dataset.labels.texts
    filtered = zip(*dataset.train.filtered.nonzero(), strict=True)
    assert {(texts[row], labels[label]) for row, label in filtered} == {
        ("boots", "boots"),
        ("hat", "hat"),
    }


def test_exact_pairs_are_kept_on_request(read: Read) -> None:
    rows = [["a", "a"], ["b", "a"], ["c", "b"]]
    filtering, keeping = read(rows, "q k"), read(rows, "q k", keep_exact=True)
    assert (filtering.facts.exact, keeping.facts.exact) == (1, 1)
    assert filtering.dataset.train.filtered.nnz == 2  # (a, a), and (b, b), which no row has
    assert keeping.dataset.train.filtered.nnz == 0
    assert relevance(keeping.dataset)["a", "a"] == 1.0


def test_without_a_test_split(read: Read, tmp_path: Path) -> None:
    dataset = read().dataset
    assert (len(dataset.train), len(dataset.test)) == (4, 0)
    assert dataset.test.labels_of.shape == dataset.test.filtered.shape == (0, 4)
    for layout in ("json", "sparse"):
        lf_xmc.write(dataset, tmp_path / layout, layout=layout)
        again = lf_xmc.read(tmp_path / layout)
        assert (len(again.test), again.train.instances) == (0, dataset.train.instances)


def test_the_newest_queries_are_for_test(read: Read) -> None:
    rows = [[f"query {row}", "label", 1000 - row] for row in range(10)] + [["query 9", "x", 2000]]
    dataset = read(rows, "q k t", time="t", test_fraction=0.3).dataset
    assert set(dataset.test.instances.texts) == {"query 9", "query 0", "query 1"}


def test_old_rows_weigh_less(read: Read) -> None:
    rows = [["a", "b", 4, "2024-01-01"], ["a", "b", 1, "2024-01-21"], ["c", "b", 2, "2024-01-11"]]
    dataset = read(rows, "q k w t", weight="w", time="t", half_life=10.0).dataset
    assert relevance(dataset) == {("a", "b"): 2.0, ("c", "b"): 1.0}


@pytest.mark.parametrize(
    ("scale", "expected"), [("given", 3.5), ("binary", 1.0), ("log", math.log(4.5))]
)
def test_the_weight_is_scaled_after_it_is_summed(read: Read, scale: str, expected: float) -> None:
    found = relevance(read(weight="w", relevance=scale).dataset)
    assert found["red shoes", "shoes"] == pytest.approx(expected)


def test_a_half_life_needs_times_and_weights(read: Read) -> None:
    with pytest.raises(InvalidInput, match="needs a column of times: --time"):
        read(half_life=3.0)
    with pytest.raises(InvalidInput, match="positive number of days, not -1"):
        PairOptions(half_life=-1.0)
    with pytest.raises(InvalidInput, match="has no weights that a half-life could change"):
        PairOptions(half_life=1.0, relevance="binary")


def test_one_text_may_have_several_ids_but_not_the_reverse(read: Read) -> None:
    rows = [["a", "same", "1"], ["b", "same", "2"], ["same", "c", "3"], ["d", "e", "4"]]
    dataset = read(rows, "q k id", label_id="id").dataset
    assert dataset.labels.texts == ("same", "same", "c", "e")
    assert dataset.train.filtered.nnz == 2
    spelled = [["a", "T-Shirt", "1"], ["b", "t-shirt", "1"], ["c", "T-SHIRT", "2"]]
    labels = read(spelled, "q k id", label_id="id").dataset.labels
    assert labels == Texts(uids=("1", "2"), texts=("T-Shirt", "T-SHIRT"))
    with pytest.raises(InvalidData, match="'1' has the text 'other', but earlier 'same'"):
        read([*rows, ["f", "other", "1"]], "q k id", label_id="id")


def test_labels_of_test_queries_stay(read: Read) -> None:
    rows = [[f"query {row}", f"label {row}"] for row in range(40)]
    dataset = read(rows, "q k", test_fraction=0.2).dataset
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
        dataset = table(path, query="q", label="k", seed=seed, test_fraction=0.4).dataset
        sides.append({text for text in dataset.test.instances.texts if text not in more})
    assert sides[0] == sides[1]


def test_the_split_has_the_fraction_and_follows_the_seed() -> None:
    texts = [f"query {row}" for row in range(4000)]
    zero, one, larger = (
        [is_test(text, fraction=fraction, seed=seed) for text in texts]
        for fraction, seed in ((0.2, 0), (0.2, 1), (0.3, 0))
    )
    assert 0.17 < sum(zero) / 4000 < 0.23
    assert zero != one
    assert all(b for a, b in zip(zero, larger, strict=True) if a)


@pytest.mark.parametrize("fraction", [1.0, -0.1, 2.0, float("nan")])
def test_a_fraction_out_of_range(fraction: float) -> None:
    with pytest.raises(InvalidInput, match="0 or more and below 1"):
        PairOptions(test_fraction=fraction)


@pytest.mark.parametrize(("fraction", "side"), [(1e-9, "test"), (1 - 1e-9, "train")])
def test_an_empty_side(read: Read, fraction: float, side: str) -> None:
    rows = [[f"query {row}", "label"] for row in range(FEW_QUERIES)]
    with pytest.raises(InvalidData, match=f"the split leaves {side} empty: {FEW_QUERIES} queries"):
        read(rows, "q k", test_fraction=fraction)
    few = read(rows[1:], "q k", test_fraction=fraction)
    assert (len(few.dataset.train), len(few.dataset.test)) == (FEW_QUERIES - 1, 0)
    assert few.facts.unsplit and not read(rows, "q k").facts.unsplit


@given(queries=st.sets(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=9))
def test_the_fewest_rows_are_a_data_set(
    queries: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("few") / "t.csv"
    path.write_text("q,k\n" + "".join(f"{query},a label\n" for query in sorted(queries)))
    read = table(path, query="q", label="k")
    assert len(read.dataset.train) and len(read.dataset.train) + len(read.dataset.test) == len(
        queries
    )
    assert read.facts.unsplit == (len(read.dataset.test) == 0)


SPELLINGS = [
    ["Nike Shoes", "Nike"],
    ["nike  shoes", "nike"],
    ["\uff2eike\u200b shoes", "nike\u200b"],
    ["cafe\u0301", "Caf\u00e9 bar"],
    ["caf\u00e9", "cafe\u0301 BAR"],
    ["NIKE", "other"],
    ["nike", "Nike"],
]


def test_spellings_of_one_text_are_one_label_and_unless_case_is_kept_one_query(read: Read) -> None:
    folded = read(SPELLINGS, "q k")
    dataset = folded.dataset
    assert dataset.train.instances.texts == ("Nike Shoes", "cafe\u0301", "NIKE")
    assert dataset.labels == Texts(
        uids=("nike", "caf\u00e9 bar", "other"), texts=("Nike", "Caf\u00e9 bar", "other")
    )
    assert relevance(dataset)["Nike Shoes", "Nike"] == 3.0
    assert (folded.facts.folded_queries, folded.facts.folded_labels) == (4, 3)
    assert folded.facts.exact == 1  # "nike", clicked for "Nike"
    apart = read(SPELLINGS, "q k", keep_case=True)
    assert len(apart.dataset.train) == len(SPELLINGS)
    assert apart.dataset.labels.uids == dataset.labels.uids
    assert (apart.facts.folded_queries, apart.facts.folded_labels) == (0, 3)


def test_all_spellings_of_a_query_are_on_one_side(read: Read) -> None:
    """In a shop's data, 76 of 464 test queries were training queries in other case or spacing."""
    rows = [[text, "k"] for row in range(40) for text in (f"query {row}", f"QUERY  {row}")]
    for keep_case in (False, True):
        dataset = read(rows, "q k", test_fraction=0.4, keep_case=keep_case).dataset
        train, test = (
            {text.lower() for text in split.instances.texts}
            for split in (dataset.train, dataset.test)
        )
        assert train and test and not train & test


def test_ids_made_from_texts_are_those_of_the_service(read: Read, trigram_bundle: Bundle) -> None:
    texts = ["AB", "Stra\u00dfe", "\ufdfa" * 2048, "x" * 2048]
    dataset = read([["q", text] for text in texts], "q k").dataset
    labels = KnowledgeMemory(trigram_bundle).view.labels
    posted = [labels.identified(NewLabel(id="", text=text)).id for text in texts]
    assert list(dataset.labels.uids) == posted


@pytest.mark.parametrize(("ending", "empty"), [("csv", ""), ("jsonl", None)])
def test_an_empty_weight_counts_as_one_and_is_reported(
    read: Read, ending: str, empty: str | None
) -> None:
    rows = [["a", "x", empty], ["b", "x", 3], ["c", "x", empty]]
    found = read(rows, "q k w", ending, weight="w")
    assert relevance(found.dataset) == {("a", "x"): 1.0, ("b", "x"): 3.0, ("c", "x"): 1.0}
    assert found.facts.unweighted == 2


def test_equal_times_do_not_depend_on_the_order_and_few_rows_hold_none_out() -> None:
    assert not split_by_time(["a", "b"], np.array([1.0, 2.0]), fraction=0.01).any()
    queries = [f"query {row}" for row in range(9)]
    forward = split_by_time(queries, np.zeros(9), fraction=0.4)
    backward = split_by_time(queries[::-1], np.zeros(9), fraction=0.4)
    assert forward.tolist() == backward.tolist()[::-1]


def test_overlap_names_both_rows(tmp_path: Path) -> None:
    dataset = tiny_dataset()
    texts = list(dataset.train.instances.texts)
    texts[6] = dataset.test.instances.texts[2]
    train = replace(
        dataset.train, instances=Texts(uids=dataset.train.instances.uids, texts=tuple(texts))
    )
    folder = tmp_path / "data"
    lf_xmc.write(replace(dataset, train=train), folder)
    with pytest.raises(InvalidData) as raised:
        refuse_overlap(lf_xmc.read(folder), folder)
    assert f"{folder / 'trn.json.gz'}:7: title: " in str(raised.value)
    assert "is also test row 3" in str(raised.value)
    refuse_overlap(dataset, folder)


HEADER = "q k tags kind"
TAGGED = [
    ["red shoes", "shoes", "shop|  red   things ", "footwear"],
    ["boots", "winter boots", "", "footwear|winter"],
    ["red shoes", "boots", "sale|shop", ""],
    ["hat", "cap", " | |", ""],
]
BOTH: dict[str, Any] = {"metadata": ("tags",), "label_metadata": ("kind",)}


def items(texts: Texts, metadata_of: csr_matrix | None, dataset: Dataset) -> dict[str, list[str]]:
    """Map each text to its items."""
    assert metadata_of is not None and dataset.metadata is not None
    names = dataset.metadata.texts
    return {
        text: [names[column] for column in metadata_of[row].indices.tolist()]
        for row, text in enumerate(texts.texts)
    }


def of_queries(dataset: Dataset) -> dict[str, list[str]]:
    return items(dataset.train.instances, dataset.train.metadata_of, dataset)


def of_labels(dataset: Dataset) -> dict[str, list[str]]:
    return items(dataset.labels, dataset.label_metadata, dataset)


@pytest.mark.parametrize("ending", FORMATS)
def test_a_text_has_the_items_of_all_its_rows(read: Read, tmp_path: Path, ending: str) -> None:
    dataset = read(TAGGED, HEADER, ending, **BOTH).dataset
    assert dataset.metadata is not None
    assert dataset.metadata.texts == ("shop", "red things", "footwear", "winter", "sale")
    assert of_queries(dataset) == {
        "red shoes": ["shop", "red things", "sale"],
        "boots": [],
        "hat": [],
    }
    assert of_labels(dataset) == {
        "shoes": ["footwear"],
        "winter boots": ["footwear", "winter"],
        "boots": [],
        "cap": [],
    }
    lf_xmc.write(dataset, tmp_path / "written")
    again = lf_xmc.read(tmp_path / "written")
    assert (of_queries(again), of_labels(again)) == (of_queries(dataset), of_labels(dataset))


def test_one_side_alone_and_several_columns(read: Read) -> None:
    dataset = read(TAGGED, HEADER, metadata=("tags", "kind")).dataset
    assert of_queries(dataset)["red shoes"] == ["shop", "red things", "footwear", "sale"]
    assert of_labels(dataset) == {"shoes": [], "winter boots": [], "boots": [], "cap": []}
    assert read(TAGGED, HEADER).dataset.metadata is None


def test_the_items_follow_their_query_into_its_split(read: Read) -> None:
    rows = [[f"query {row}", "label", f"item {row}", ""] for row in range(40)]
    dataset = read(rows, HEADER, **BOTH, test_fraction=0.5).dataset
    for split in (dataset.train, dataset.test):
        found = items(split.instances, split.metadata_of, dataset)
        assert found == {text: [text.replace("query", "item")] for text in split.instances.texts}


def test_another_delimiter_and_lists(read: Read) -> None:
    rows, tags = [["a", "b", "x|y, z", ""]], {"metadata": ("tags",)}
    dataset = read(rows, HEADER, **tags, metadata_delimiter=", ").dataset
    assert of_queries(dataset) == {"a": ["x|y", "z"]}
    listed = [["a", "b", ["x", "y|z", "", 7], None]]
    assert of_queries(read(listed, HEADER, "jsonl", **BOTH).dataset) == {"a": ["x", "y|z", "7"]}
    with pytest.raises(InvalidInput, match="one character or more"):
        read(rows, HEADER, **tags, metadata_delimiter="")


def test_a_bad_cell_is_a_bad_row_and_links_nothing(read: Read) -> None:
    rejects = Rejects()
    rows = [["a", "b", [{"x": 1}], None], ["c", "d", True, None], ["e", "f", "fine", None]]
    dataset = read(rows, HEADER, "jsonl", **BOTH, on_bad=rejects).dataset
    assert [str(row) for row in rejects.rows] == [
        "1: tags: must be a text, not dict",
        "2: tags: must be a text, not bool",
    ]
    assert of_queries(dataset) == {"e": ["fine"]}


def test_columns_without_any_item_are_an_error(read: Read) -> None:
    rows = [["a", "b", "", ""], ["c", "d", "|", ""]]
    with pytest.raises(InvalidData, match="has no metadata in any row of tags, kind"):
        read(rows, HEADER, **BOTH)
    with pytest.raises(InvalidData, match=":1: colour: there is no such column"):
        read(rows, HEADER, metadata=("colour",))


# With a catalogue --------------------------------------------------------------------------------

CATALOGUE = Catalogue(
    labels=Texts(uids=("1", "2", "3"), texts=("Boots", "tent", "lamp")),
    fields=({"price": 5}, {}, {"price": 7}),
    aliases=(("gumboots",), (), ("torch", "XK-1")),
    has_ids=True,
)


@pytest.mark.parametrize("named", ["1", "Boots", "boots"])
def test_rows_name_labels_of_the_catalogue_by_id_or_text(read: Read, named: str) -> None:
    found = read([["wellies", named], ["shelter", "tent"]], "q k", catalogue=CATALOGUE)
    dataset = found.dataset
    assert dataset.labels == CATALOGUE.labels
    assert dataset.label_fields == CATALOGUE.fields
    assert dataset.label_aliases == CATALOGUE.aliases
    assert relevance(dataset) == {("wellies", "Boots"): 1.0, ("shelter", "tent"): 1.0}
    assert found.facts.catalogue == CatalogueFacts(
        labels=3, unnamed=1, unknown_rows=0, unknown_labels=0, retitled=0
    )
    assert found.facts.test_only == 0


def test_labels_that_the_catalogue_lacks_are_kept(read: Read) -> None:
    rows = [["a", "Hat"], ["b", "hat"], ["c", "scarf"], ["d", "1"]]
    found = read(rows, "q k", catalogue=CATALOGUE)
    assert found.dataset.labels.uids == ("1", "2", "3", "hat", "scarf")
    assert found.dataset.labels.texts[3:] == ("Hat", "scarf")
    assert found.dataset.label_fields == (*CATALOGUE.fields, {}, {})
    assert found.dataset.label_aliases == (*CATALOGUE.aliases, (), ())
    assert found.facts.catalogue == CatalogueFacts(
        labels=3, unnamed=2, unknown_rows=3, unknown_labels=2, retitled=0
    )


def test_the_catalogues_text_counts_for_an_id(read: Read) -> None:
    rows = [["a", "old boots", "1"], ["b", "BOOTS", "1"], ["c", "1", "1"], ["d", "hat", "9"]]
    found = read(rows, "q k id", label_id="id", catalogue=CATALOGUE)
    assert found.dataset.labels.texts == ("Boots", "tent", "lamp", "hat")
    assert found.facts.catalogue is not None
    assert (found.facts.catalogue.retitled, found.facts.folded_labels) == (1, 1)
    texts_alone = Catalogue(labels=Texts.named_by_text(["boots"]))
    with pytest.raises(InvalidInput, match="--label-id needs --catalogue-id"):
        read(rows, "q k id", label_id="id", catalogue=texts_alone)


def test_a_text_of_several_labels_is_a_bad_row(read: Read) -> None:
    labels = Texts(uids=("1", "2"), texts=("boots", "Boots"))
    rejects = Rejects()
    rows = [["a", "boots"], ["b", "2"]]
    catalogue = Catalogue(labels=labels, has_ids=True)
    found = read(rows, "q k", catalogue=catalogue, on_bad=rejects)
    assert [row.line for row in rejects.rows] == [2]
    assert "name a column of ids with --label-id" in rejects.rows[0].reason
    assert found.dataset.train.instances.texts == ("b",)


def test_ids_in_the_log_may_be_whole_numbers(read: Read) -> None:
    found = read([["a", 1], ["b", 3]], "q k", "jsonl", catalogue=CATALOGUE)
    assert relevance(found.dataset) == {("a", "Boots"): 1.0, ("b", "lamp"): 1.0}


def test_a_query_that_is_a_label_without_clicks_is_filtered(read: Read) -> None:
    dataset = read([["lamp", "1"]], "q k", catalogue=CATALOGUE).dataset
    assert dataset.train.filtered.toarray().tolist() == [[False, False, True]]
