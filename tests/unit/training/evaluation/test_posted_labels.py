"""Posted labels are drawn by the seed, posted like any label, and asked by what only they have."""

from random import Random

from service.core.bundle.bundle import Bundle
from service.core.lexical.words import words_of
from tests.support.tiny.encoder import TrigramEncoder
from training.evaluation.posted_labels import PostedLabels, posted_id


def test_labels_are_posted_with_their_codes(trigram_bundle: Bundle) -> None:
    one, other = (
        PostedLabels.of(trigram_bundle, TrigramEncoder(), count=5, chance=Random(3))
        for _ in range(2)
    )
    assert one.texts == other.texts
    assert len(set(one.texts)) == len(set(one.codes)) == 5
    for place, (text, code) in enumerate(zip(one.texts, one.codes, strict=True)):
        column = one.view.labels.column(posted_id(place))
        assert column is not None
        assert one.view.labels.text_at(column) == text
        assert text.endswith(f" {code}")
    typed = one.typed_codes(Random(0))
    for code, query in zip(one.codes, typed, strict=True):
        assert words_of(code)[0] == query.replace("-", "").replace(" ", "").lower()
    for text, query in zip(one.texts, one.rare_words(), strict=True):
        assert set(words_of(query)) <= set(words_of(text))


def test_few_labels_have_few_pairs(trigram_bundle: Bundle) -> None:
    labels = trigram_bundle.labels
    posted = PostedLabels.of(trigram_bundle, TrigramEncoder(), count=1_000, chance=Random(0))
    assert len(posted.codes) == labels * (labels - 1) // 2
