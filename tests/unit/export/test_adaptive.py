"""A learned lambda on its way from an encoder's folder into a bundle."""

from pathlib import Path

import pytest

from export.adaptive import learned_memorization
from export.encoder.provenance import predictor_defaults
from service.core.bundle.manifest import AdaptiveFacts
from service.core.errors import BundleUnsupported, InvalidData, InvalidInput
from training.checkpoints.choices import ADAPTIVE, LearnedMemorization

WEIGHTS = {"entropy": -1.5}
LEARNED = LearnedMemorization(weights=WEIGHTS, bias=0.25, tau=0.04, depth=100)


def test_it_goes_along_switched_off_unless_it_is_asked_for() -> None:
    for enabled in (False, True):
        facts = learned_memorization(LEARNED, tau=0.04, depth=100, enabled=enabled)
        assert facts == AdaptiveFacts(weights=WEIGHTS, bias=0.25, enabled=enabled)


@pytest.mark.parametrize(("tau", "depth"), [(0.05, 100), (0.04, 200)])
def test_it_holds_only_where_it_was_learned(tau: float, depth: int) -> None:
    with pytest.raises(InvalidInput, match=r"learned at tau 0\.04 and depth 100"):
        learned_memorization(LEARNED, tau=tau, depth=depth, enabled=True)
    facts = learned_memorization(LEARNED, tau=tau, depth=depth, enabled=False)
    assert facts is not None
    assert not facts.enabled


def test_what_was_never_learned_cannot_be_asked_for() -> None:
    assert learned_memorization(None, tau=0.04, depth=200, enabled=False) is None
    with pytest.raises(InvalidInput, match="no learned lambda"):
        learned_memorization(None, tau=0.04, depth=200, enabled=True)


def test_a_file_of_another_kind_or_version_is_named(tmp_path: Path) -> None:
    learned = LearnedMemorization(weights={"weather": 1.0}, bias=0.0, tau=0.04, depth=100)
    with pytest.raises(BundleUnsupported, match="weather"):
        learned_memorization(learned, tau=0.04, depth=100, enabled=False)
    (tmp_path / ADAPTIVE).write_text("{}")
    with pytest.raises(InvalidData, match=r"adaptive\.json: is not what `adapt` writes"):
        predictor_defaults(tmp_path)
