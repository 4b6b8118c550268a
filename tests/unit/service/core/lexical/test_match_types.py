"""Keywords match a query exactly, as a phrase, or broadly."""

import numpy as np
import pytest

from service.core.lexical import lexicon as module
from service.core.lexical.words import TypedQuery
from tests.unit.service.core.lexical.test_lexicon import lexicon


@pytest.mark.parametrize(
    ("query", "keyword", "match"),
    [
        ("Red T-Shirts", "red t-shirts", "exact"),
        ("Red T-Shirts", "RED TSHIRTS", "exact"),
        ("Red T-Shirts", "red t shirts!", "exact"),
        ("bookmark", "book mark", "exact"),
        ("crème brûlée", "Creme Brulee", "phrase"),  # accents are often letters of their own
        ("мой", "мои", "phrase"),
        ("bán", "bạn", "phrase"),
        ("crème brûlée", "CRE\u0300ME-brûlée", "exact"),
        ("xk 4411", "XK-4411", "exact"),
        ("men's shoes", "mens shoes", "exact"),
        ("حذاء أحمر؟", "حذاء أحمر", "exact"),
        ("كِتَابٌ", "كتـــاب", "exact"),
        ("שָׁלוֹם־עולם", "שלום עולם", "exact"),
        ("Բարեւ\u0589", "բարեւ", "exact"),
        ("ሰላም፡ ዓለም።", "ሰላም ዓለም", "exact"),
        ("क्या?।", "क्या", "exact"),
        ("किताब", "कताब", "broad"),  # vowel signs are letters
        ("❤️ mug", "❤ mug", "exact"),
        ("👩‍💻 mug", "👩💻 mug", "broad"),
        ("👍🏽", "👍🏿", "broad"),
        ("canister 1.5 litre", "canister 15 litre", "broad"),
        ("canister 1.5 litre", "5 litre", "broad"),
        ("size 5.5", "size 55", "broad"),
        ("3/4 pipe", "34 pipe", "broad"),
        ("1½ inch", "1 1/2 inch", "exact"),
        ("1½ inch", "11/2 inch", "broad"),
        ("10² tiles", "102 tiles", "broad"),
        ("²5 tiles", "25 tiles", "broad"),
        ("size 5 5", "size 55", "broad"),
        ("44-11 valve", "44 11 valve", "exact"),
        ("44-11 valve", "4411 valve", "broad"),
        ("-5 °C", "5 °C", "broad"),
        ("\u22125 °C", "-5 C", "exact"),
        ("$5 card", "€5 card", "broad"),
        ("5% off", "5 off", "broad"),
        ("galaxy s9+", "galaxy s9", "broad"),
        ("C++ course", "C# course", "broad"),
        ("C++ course", "C course", "broad"),
        ("course (C++)", "course C\uff0b+", "exact"),
        ("grade A+", "grade A-", "broad"),
        ("grade A-", "grade A", "broad"),
        ("tent - red", "tent: red.", "exact"),
        ("xk4411", "XK-4411", "exact"),
        ("tshirt", "T-shirt", "exact"),
        ("buy red t-shirts", "red t-shirts", "phrase"),
        ("buy red t-shirts", "tshirts", "phrase"),
        ("buy red t-shirts", "buy shirts", "phrase"),
        ("drill xk 4411", "XK-4411", "phrase"),
        ("shirts red", "red shirts", "broad"),
        ("red shirts", "red red shirts", "broad"),
        ("red shirt", "red shirts", "broad"),
        ("red", "red shirts", "broad"),
        ("?!", "?!", "broad"),
        ("?!", "red", "broad"),
        ("red", "?!", "broad"),
        ("🏕️ tent", "🏕", "phrase"),
    ],
)
def test_match_types(query: str, keyword: str, match: str) -> None:
    assert TypedQuery(query).match(keyword) == match


def test_rows_that_consist_of_words_of_a_query() -> None:
    found = lexicon(["petzl lamp", "red petzl tent", "XK-4411"])
    assert found.covered("the red lamp tent").tolist() == [0, 1]
    assert found.covered("petzl tent red lamp xk 4411").tolist() == [0, 1, 5, 6, 7]
    assert found.covered("?!").tolist() == []


def test_of_many_such_rows_those_with_most_words_are_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_COVERED", 2)
    assert lexicon(["lamp", "lamp", "oil"]).covered("red lamp oil").tolist() == [1, 3]
    assert np.array_equal(lexicon(["lamp", "lamp", "oil"]).covered("lamp"), [5, 6])
