"""Rows are matched by words: rare words count more, and posted rows and codes are found alone."""

import math

import numpy as np
import pytest

from service.core.index.protocol import Tombstones
from service.core.lexical import lexicon as module
from service.core.lexical.hybrid import cosines_by, with_matches
from service.core.lexical.lexicon import MOST_MATCHES, OWN, Lexicon, Matches, WordPart
from service.core.lexical.word_index import index_texts

TRAINED = ["red tent", "red lamp", "red boots", "lamp oil", "drill XK-4411"]
POSTED = ["petzl lamp", "red petzl tent"]


def lexicon(
    posted: list[str], trained: list[str] = TRAINED, *, dead: tuple[int, ...] = ()
) -> Lexicon:
    first = len(TRAINED)
    return Lexicon(
        parts=(
            WordPart(
                index=index_texts(TRAINED),
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
    rows, added = matches.adding(0.5)
    assert rows.tolist() == matches.rows.tolist()
    assert added == pytest.approx(0.5 * matches.coverage + matches.own)
    assert matches.adding(0.0)[0].tolist() == [5, 6]


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


def test_the_newest_of_many_equal_rows_are_kept() -> None:
    matches = lexicon(["lamp"] * 100).matches("lamp", share=1.0)
    assert matches.rows.tolist() == list(range(105 - MOST_MATCHES, 105))


def test_a_frequent_word_is_looked_up_in_its_newest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LISTED", 3)
    matches = lexicon(["lamp", "lamp"]).matches("lamp", share=1.0)
    assert matches.rows.tolist() == [3, 5, 6]
    matches = lexicon(["lamp", "lamp"]).matches("oil lamp", share=1.0)  # rows of "oil" alone
    assert matches.rows.tolist() == [3]
    assert matches.coverage.tolist() == [1.0]


# Joined with what vectors find --------------------------------------------------------------


def joined(matches: Matches, share: float) -> tuple[list[float], list[int]]:
    keys = np.eye(4, dtype=np.float16)
    query = np.array([[0.8, 0.6, 0.0, 0.0]], np.float32)
    similarities, rows = with_matches(
        np.array([[0.8, 0.6, -np.inf]], np.float32),
        np.array([[0, 1, -1]]),
        matches=[matches.adding(share)],
        cosines=cosines_by(lambda rows: keys[rows], query),
    )
    return similarities[0].tolist(), rows[0].tolist()


def test_what_words_find_is_added_to_the_cosine() -> None:
    matches = Matches(np.array([1, 2]), np.array([0.5, 1.0]), np.array([0.0, 0.8]))
    similarities, rows = joined(matches, 1.0)
    assert rows == [2, 1, 0]
    assert similarities == pytest.approx([1.8, 1.1, 0.8])


def test_matches_that_add_nothing_are_left_out() -> None:
    matches = Matches(np.array([1, 2]), np.array([0.5, 1.0]), np.array([0.0, 0.0]))
    similarities, rows = joined(matches, 0.0)
    assert rows == [0, 1, -1]
    assert similarities == pytest.approx([0.8, 0.6, -np.inf])
