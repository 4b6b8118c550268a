"""A learned lambda on its way from an encoder's folder into a bundle."""

from pathlib import Path

import pytest

from export.adaptive import learned_memorization
from service.core.errors import BundleUnsupported, InvalidData, InvalidInput
from service.core.manifest import AdaptiveFacts
from training.model_folder import ADAPTIVE, LearnedMemorization, write_learned

WEIGHTS = {"entropy": -1.5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    learned = LearnedMemorization(weights=WEIGHTS, bias=0.25, tau=0.04, depth=100)
    write_learned(tmp_path, learned)
    return tmp_path


def test_it_goes_along_switched_off_unless_it_is_asked_for(folder: Path) -> None:
    for enabled in (False, True):
        facts = learned_memorization(folder, tau=0.04, depth=100, enabled=enabled)
        assert facts == AdaptiveFacts(weights=WEIGHTS, bias=0.25, enabled=enabled)


@pytest.mark.parametrize(("tau", "depth"), [(0.05, 100), (0.04, 200)])
def test_it_holds_only_where_it_was_learned(folder: Path, tau: float, depth: int) -> None:
    with pytest.raises(InvalidInput, match=r"learned at tau 0\.04 and depth 100"):
        learned_memorization(folder, tau=tau, depth=depth, enabled=True)
    facts = learned_memorization(folder, tau=tau, depth=depth, enabled=False)
    assert facts is not None
    assert not facts.enabled


def test_what_was_never_learned_cannot_be_asked_for(tmp_path: Path) -> None:
    assert learned_memorization(tmp_path, tau=0.04, depth=200, enabled=False) is None
    with pytest.raises(InvalidInput, match="no learned lambda"):
        learned_memorization(tmp_path, tau=0.04, depth=200, enabled=True)


def test_a_file_of_another_kind_or_version_is_named(folder: Path) -> None:
    learned = LearnedMemorization(weights={"weather": 1.0}, bias=0.0, tau=0.04, depth=100)
    write_learned(folder, learned)
    with pytest.raises(BundleUnsupported, match="weather"):
        learned_memorization(folder, tau=0.04, depth=100, enabled=False)
    (folder / ADAPTIVE).write_text("{}")
    with pytest.raises(InvalidData, match=r"adaptive\.json: is not what `adapt` writes"):
        learned_memorization(folder, tau=0.04, depth=100, enabled=False)
