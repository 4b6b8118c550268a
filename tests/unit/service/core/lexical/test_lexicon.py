"""Rows are matched by words: rare words count more, and posted rows and codes are found alone."""

import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.index.protocol import Tombstones
from service.core.lexical import lexicon as module
from service.core.lexical.hybrid import cosines_by, with_matches
from service.core.lexical.lexicon import MOST_MATCHES, OWN, Lexicon, WordPart
from service.core.lexical.word_index import index_texts

TRAINED = ["red tent", "red lamp", "red boots", "lamp oil", "drill XK-4411"]
POSTED = ["petzl lamp", "red petzl tent"]


def lexicon(
    posted: list[str], trained: list[str] = TRAINED, *, dead: tuple[int, ...] = ()
) -> Lexicon:
    first = len(trained)
    return Lexicon(
        parts=(
            WordPart(
                index=index_texts(trained),
                rows=first,
                dead=Tombstones(size=first).with_dead(dead) if dead else Tombstones(size=first),
                posted=np.zeros(0, np.int64),
            ),
            WordPart(
                index=index_texts(posted),
                rows=len(posted),
                dead=Tombstones(size=len(posted)),
                first=first,
            ),
        )
    )


def rarity(rows: int, *, of: int) -> float:
    return math.log1p((of - rows + 0.5) / (rows + 0.5))


def test_coverage_is_the_share_of_the_querys_rarity() -> None:
    matches = lexicon(POSTED).matches("red petzl", share=1.0)
    red, petzl = rarity(4, of=7), rarity(2, of=7)
    both = red + petzl
    assert matches.rows.tolist() == [0, 1, 2, 5, 6]
    assert matches.coverage == pytest.approx([red / both] * 3 + [petzl / both, 1.0])
    assert matches.own[:3].tolist() == [0.0] * 3
    assert matches.own[3:] == pytest.approx([OWN * petzl / both, OWN])
    match = matches.adding(0.5)
    assert match.rows.tolist() == matches.rows.tolist()
    assert match.added(matches.rows) == pytest.approx(0.5 * matches.coverage + matches.own)
    assert matches.adding(0.0).rows.tolist() == [5, 6]


def test_an_unknown_word_lowers_the_coverage() -> None:
    [coverage] = lexicon(POSTED).matches("oil qqqq", share=1.0).coverage
    known, unknown = rarity(1, of=7), rarity(0, of=7)
    assert coverage == pytest.approx(known / (known + unknown))


def test_words_of_many_rows_identify_none() -> None:
    posted = ["lamp one"] * 7
    matches = lexicon(posted).matches("lamp", share=1.0)
    assert len(matches.rows) == 9
    assert matches.own.tolist() == pytest.approx([0.0, 0.0] + [OWN * 4 / 9] * 7)


@pytest.mark.parametrize("query", ["XK-4411", "xk4411", "xk 4411", "Xk-4411", "4411 xk", "xk.4411"])
def test_a_code_finds_its_row_in_all_forms(query: str) -> None:
    matches = lexicon(POSTED).matches(query, share=0.0)
    assert matches.rows.tolist() == [4]
    assert matches.own.tolist() == [OWN]


@pytest.mark.parametrize(
    "text", ["TX-200", "tx200", "200 B", "tx200b", "TX 200/b lamp", "TX-200/B"]
)
def test_a_text_is_contained_as_a_whole_or_in_pieces(text: str) -> None:
    posted = ["lamp TX-200/B", "lamp tx 201 b", "tx200b lamps"]
    assert 5 in lexicon(posted).containing(text).tolist()
    assert 6 not in lexicon(posted).containing(text).tolist()
    assert not len(lexicon(posted).containing(f"{text} paddle"))


def test_a_code_among_other_words_finds_trained_rows_as_words_do() -> None:
    matches = lexicon(POSTED).matches("red XK-4411", share=1.0)
    assert matches.own[matches.rows == 4].tolist() == [0.0]


@pytest.mark.parametrize("query", ["", "?!", "qqqq"])
def test_a_query_without_known_words_matches_nothing(query: str) -> None:
    assert not len(lexicon(POSTED).matches(query, share=1.0).rows)


def test_nothing_is_looked_up_that_would_add_nothing() -> None:
    assert not len(lexicon([]).matches("red tent", share=0.0).rows)


def test_dead_rows_do_not_match_or_count() -> None:
    matches = lexicon(POSTED, dead=(0, 1)).matches("red", share=1.0)
    assert matches.rows.tolist() == [2, 6]


def test_rows_that_match_as_well_as_the_last_one_are_found_too() -> None:
    matches = lexicon(["lamp"] * 100 + ["oil lamp"]).matches("oil lamp", share=1.0)
    assert matches.adding(1.0).rows.tolist() == [1, 3, *range(5, 106)]
    assert len(matches.adding(1.0).rows) > MOST_MATCHES


def test_of_a_frequent_word_only_rows_of_the_querys_size_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LISTED", 3)
    posted = ["lamp", "lamp lamp", "blue lamp"]
    assert lexicon(posted).matches("lamp", share=1.0).rows.tolist() == [5, 6]
    matches = lexicon(posted).matches("oil lamp", share=1.0)  # rows of "oil" alone
    assert matches.rows.tolist() == [3]
    assert matches.coverage == pytest.approx([1.0])


def test_every_row_gets_its_coverage_whether_or_not_words_found_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = lexicon(POSTED).matches("red petzl lamp", share=1.0)
    monkeypatch.setattr(module, "_LISTED", 2)
    few = lexicon(POSTED).matches("red petzl lamp", share=1.0)
    assert few.rows.tolist() == [5, 6]
    rows = np.arange(7)[::-1]
    added = every.adding(0.5).added(rows) - few.adding(0.5).added(rows)
    own = np.zeros(7)
    own[every.rows] = every.own
    own[few.rows] -= few.own
    assert added == pytest.approx(own[rows])


def test_words_lift_no_row_over_a_trained_one_that_is_the_query() -> None:
    posted = ["red tent petzl", "red tent", "tent red lamp"]
    matches = lexicon(posted).matches("red tent", share=0.4)
    assert not matches.own.any()
    assert matches.adding(0.4).added(np.array([0, 5, 6])) == pytest.approx([0.4] * 3)
    assert lexicon(posted, dead=(0,)).matches("red tent", share=0.4).own.any()


def test_a_trained_row_that_is_a_code_is_lifted_over_rows_that_contain_it() -> None:
    matches = lexicon(["XK-4411", "oil XK-4411"], ["XK-4411"]).matches("xk-4411", share=0.4)
    assert (matches.rows.tolist(), matches.own.tolist()) == ([0, 1, 2], [OWN, OWN, 0.0])


WORDS = st.sampled_from(["red", "tent", "lamp", "xk4411", "oil"])
TEXTS = st.lists(st.lists(WORDS, min_size=1, max_size=4).map(" ".join), min_size=1, max_size=12)


@given(texts=TEXTS, posted=TEXTS, query=TEXTS, data=st.data())
def test_the_order_of_rows_changes_nothing(
    texts: list[str], posted: list[str], query: list[str], data: st.DataObject
) -> None:
    orders = [data.draw(st.permutations(range(len(rows)))) for rows in (texts, posted)]

    def added(trained_order: list[int], posted_order: list[int]) -> dict[tuple[bool, int], float]:
        """Return what is added to each row that words find, by its place before the permutation."""
        rows = [(False, row) for row in trained_order] + [(True, row) for row in posted_order]
        match = (
            lexicon([posted[row] for row in posted_order], [texts[row] for row in trained_order])
            .matches(query[0], share=0.4)
            .adding(0.4)
        )
        return {
            rows[row]: one for row, one in zip(match.rows, match.added(match.rows), strict=True)
        }

    with patch.multiple(module, _LISTED=4, MOST_MATCHES=3):
        assert added(*orders) == added(list(range(len(texts))), list(range(len(posted))))


# Joined with what vectors find --------------------------------------------------------------


TENTS = ["red tent", "tent", "blue tent", "lamp"]


def joined(query: str, share: float, *, posted: bool) -> tuple[list[float], list[int]]:
    """Join what vectors found, the rows 0 and 1, with the words of a query over `TENTS`."""
    keys = np.eye(4, dtype=np.float16)
    vector = np.array([[0.8, 0.6, 0.0, 0.0]], np.float32)
    trained, learned = ([], TENTS) if posted else (TENTS, [])
    matches = lexicon(learned, trained).matches(query, share=share)
    similarities, rows = with_matches(
        np.array([[0.8, 0.6, -np.inf]], np.float32),
        np.array([[0, 1, -1]]),
        matches=[matches.adding(share)],
        cosines=cosines_by(lambda rows: keys[rows], vector),
    )
    return similarities[0].tolist(), rows[0].tolist()


def test_what_words_add_is_added_to_the_cosine() -> None:
    blue, tent = rarity(1, of=4), rarity(3, of=4)
    similarities, rows = joined("blue tent", 1.0, posted=False)
    assert rows == [0, 2, 1]
    of_tent = tent / (blue + tent)
    assert similarities == pytest.approx([0.8 + of_tent, 1.0, 0.6 + of_tent])


def test_posted_rows_are_found_by_words_alone() -> None:
    similarities, rows = joined("lamp", 0.0, posted=True)
    assert rows == [0, 3, 1]
    assert similarities == pytest.approx([0.8, OWN, 0.6])


def test_words_that_add_nothing_find_nothing() -> None:
    similarities, rows = joined("lamp", 0.0, posted=False)
    assert rows == [0, 1, -1]
    assert similarities == pytest.approx([0.8, 0.6, -np.inf])
