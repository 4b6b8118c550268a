"""Every peer on queries such as "red tent" with clicks for "red" and "tent".

XR-Linear needs an interpreter with libpecos; KEYMATCH_TEST_PECOS names it.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.config import parse
from service.core.errors import InvalidConfig, MissingExtra
from tests.support.tiny.training import ADJECTIVES, NOUNS, tiny_dataset
from training.datasets.dataset import Dataset
from training.lab import peers
from training.lab.peers import PeerModule, peer_training_data
from training.lab.peers.ranking import Ranked, Ranking

# Python warns of an invalid escape in napkinXC's source when it compiles the file.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")

PACKAGES = {"bm25": "bm25s", "omikuji": "omikuji", "xr-linear": "sklearn", "plt": "napkinxc"}
LEARNING = [name for name in PACKAGES if name != "bm25"]
SEEDED = ["bm25", "xr-linear"]  # the others use LIBLINEAR, which takes no seed


def peer(name: str) -> PeerModule:
    pytest.importorskip(PACKAGES[name], reason=f"NOT TRAINED: {PACKAGES[name]} is not installed")
    return peers.load(name)


def trained(name: str, dataset: Dataset, folder: Path) -> Ranking:
    module, changes = peer(name), {}
    if name == "xr-linear":
        changes["python"] = os.environ.get("KEYMATCH_TEST_PECOS")
        if not changes["python"]:
            pytest.skip("NOT TRAINED: KEYMATCH_TEST_PECOS names no interpreter with libpecos")
    return module.train(peer_training_data(dataset), module.Settings(**changes), folder=folder)


def ranked(name: str, dataset: Dataset, folder: Path, *, top_k: int = 100) -> Ranked:
    return trained(name, dataset, folder).rank(dataset.test.instances.texts, top_k)


@pytest.mark.parametrize("name", PACKAGES)
def test_it_ranks_what_was_clicked_first(name: str, tmp_path: Path) -> None:
    dataset = tiny_dataset()
    fitted = trained(name, dataset, tmp_path)
    assert (fitted.device, bool(fitted.libraries)) == (None, True)

    [(result, rows)] = fitted.measure(dataset)
    assert result.metrics["P@1"] > 80.0  # at random: 12.5
    assert result.metrics["R@10"] > 90.0
    assert rows.shape == (len(dataset.test), 3)

    # If nouns are filtered, each row has one label left, and no noun is ranked above it.
    filtered = dataset.test.filtered.tolil()
    filtered[:, -len(NOUNS) :] = True
    test = replace(dataset.test, filtered=filtered.tocsr())
    [(result, _)] = fitted.measure(replace(dataset, test=test))
    assert result.metrics["P@1"] > 80.0

    # Rows hold distinct labels, then nothing. A text without known words is no error.
    for line in fitted.rank(dataset.test.instances.texts, 20):
        kept = line[line >= 0]
        assert len(set(kept.tolist())) == len(kept) <= len(dataset.labels)
        assert (line[len(kept) :] == -1).all()
    found = fitted.rank(["§§§", "red"], 5)
    assert found.shape == (2, 5) and found[1, 0] == ADJECTIVES.index("red")


@pytest.mark.parametrize("name", LEARNING)
def test_filtered_pairs_teach_nothing(name: str, tmp_path: Path) -> None:
    """All pairs with adjectives are filtered, so all first answers are nouns."""
    dataset = tiny_dataset()
    filtered = dataset.train.filtered.tolil()
    filtered[:, : len(ADJECTIVES)] = True
    dataset = replace(dataset, train=replace(dataset.train, filtered=filtered.tocsr()))

    first = ranked(name, dataset, tmp_path)[:, 0]

    assert (first >= len(ADJECTIVES)).all()


@pytest.mark.parametrize("name", SEEDED)
def test_it_is_deterministic(name: str, tmp_path: Path) -> None:
    dataset = tiny_dataset()
    first = ranked(name, dataset, tmp_path / "first")
    assert (first == ranked(name, dataset, tmp_path / "again")).all()


def test_shared_words_decide_for_bm25(tmp_path: Path) -> None:
    found = ranked("bm25", tiny_dataset(), tmp_path, top_k=4)

    assert (found[:, 2:] == -1).all()
    assert {tuple(sorted(line)) for line in np.array(found[:, :2]).tolist()} == {
        (ADJECTIVES.index(first), len(ADJECTIVES) + NOUNS.index(second))
        for first, second in (text.split() for text in tiny_dataset().test.instances.texts)
    }


@pytest.mark.parametrize("name", PACKAGES)
def test_settings_are_checked(name: str) -> None:
    settings = peer(name).Settings

    with pytest.raises(InvalidConfig, match=f"peer {name}: depth is unknown; known are "):
        parse(settings, {"depth": 3}, source=f"peer {name}")
    first = next(iter(settings.__dataclass_fields__))
    with pytest.raises(InvalidConfig, match=f"peer {name}: {first}: must be"):
        parse(settings, {first: []}, source=f"peer {name}")


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(module: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name="bm25s")

    monkeypatch.setattr(peers, "import_module", without)
    with pytest.raises(MissingExtra, match=r"bm25s is not installed: .*'\.\[benchmark\]'"):
        peers.load("bm25")


def test_an_interpreter_without_libpecos_is_told_how_to_get_it(tmp_path: Path) -> None:
    module = peer("xr-linear")

    for python in (sys.executable, str(tmp_path / "none")):
        settings = module.Settings(python=python)
        with pytest.raises(InvalidConfig, match=r"has no libpecos; .* python3 -m venv pecos;"):
            module.train(peer_training_data(tiny_dataset()), settings, folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()
