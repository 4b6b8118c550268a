"""Fixtures for all tests; `tests.support` is importable from here on."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A wheel in the environment brings only the three packages: the tests' own must be found as well.
sys.path.insert(0, str(Path(__file__).parents[1]))

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.index.faiss_hnsw import search_in_one_thread
from tests.support.postgres import postgres_url as postgres_url
from tests.support.tiny.bundles import make_bundle as write
from tests.support.tiny.encoder import TrigramEncoder

# Properties say nothing about time, and a busy machine must not fail them.
settings.register_profile("keymatch", deadline=None)
settings.load_profile("keymatch")


@pytest.fixture(scope="session", autouse=True)
def _one_thread_a_search() -> None:
    """As in the service: threads that wait for each other make tiny searches slow and varying."""
    search_in_one_thread()


@pytest.fixture(scope="session", autouse=True)
def _no_terminal() -> None:
    """Let a test set COLUMNS: readline exports the terminal's size, and a console keeps it."""
    for size in ("COLUMNS", "LINES"):
        os.environ.pop(size, None)


@pytest.fixture(scope="module", autouse=True)
def _own_accelerator() -> Iterator[None]:
    """Accelerate keeps the precision of a process's first run, and refuses another one's."""
    yield
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def encoder() -> TrigramEncoder:
    """A fake encoder that needs no files."""
    return TrigramEncoder()


@pytest.fixture
def make_bundle(tmp_path: Path) -> Callable[..., Path]:
    """`make_bundle(catalogue, **facts)` writes a tiny bundle below the test's own folder."""
    return lambda *args, name="bundle", **kwargs: write(tmp_path / name, *args, **kwargs)


@pytest.fixture(scope="session")
def tiny_bundle_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny bundle with keys of its own encoder; do not change it."""
    return write(tmp_path_factory.mktemp("shared") / "tiny")


@pytest.fixture(scope="session")
def trigram_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A tiny bundle with keys of the `TrigramEncoder`, opened."""
    folder = tmp_path_factory.mktemp("shared") / "trigrams"
    return open_bundle(write(folder, encoder=TrigramEncoder()))
