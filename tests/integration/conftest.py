"""Running services: one is shared by all tests that only read, other tests start their own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cyclopts import App

from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle
from tests.support.commands import WIDE, Refused, one_line, status_of
from tests.support.serving import LocalService, ServerProcess, local_service, server_process
from tests.support.tiny.bundles import write_document


@pytest.fixture
def words_bundle(make_bundle: Callable[..., Path]) -> Path:
    """A bundle that finds rows by words, too."""
    folder = make_bundle(name="words")
    document = manifest.as_document(open_bundle(folder).manifest)
    predictor = {**document["predictor"], "words": 0.0}
    write_document(folder, {**document, "predictor": predictor})
    return folder


@pytest.fixture(scope="module")
def reader(
    tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalService]:
    """A service within this process that no test writes to."""
    with local_service(tiny_bundle_folder, tmp_path_factory.mktemp("state")) as service:
        yield service


@pytest.fixture
def serve(tiny_bundle_folder: Path, tmp_path: Path) -> Iterator[Callable[..., LocalService]]:
    """`serve(**settings)` starts a service within this process, with the test's own label log."""
    with ExitStack() as running:
        yield lambda **settings: running.enter_context(
            local_service(tiny_bundle_folder, tmp_path / "state", **settings)
        )


@pytest.fixture
def service(serve: Callable[..., LocalService]) -> LocalService:
    """A fresh service within this process."""
    return serve()


@pytest.fixture
def start(tiny_bundle_folder: Path, tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """`start(*options)` starts a server process; all those of one test share one label log."""
    with ExitStack() as running:
        yield lambda *options, **how: running.enter_context(
            server_process(
                tiny_bundle_folder, tmp_path / "state", tmp_path / "stderr", *options, **how
            )
        )


@pytest.fixture(scope="session")
def server(
    tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A shared server process, in any state; request bodies may have up to 100,000 bytes."""
    folder = tmp_path_factory.mktemp("server")
    config = folder / "keymatch.toml"
    config.write_text("[limits]\nbody_bytes = 100_000\n")
    options = ("--config", str(config))
    with server_process(tiny_bundle_folder, folder / "state", folder / "stderr", *options) as up:
        yield up


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """`refused(app, *arguments)` runs a command in this process and returns its error message."""
    for name, value in WIDE.items():
        monkeypatch.setenv(name, value)

    def refuse(app: App, *arguments: object) -> str:
        capsys.readouterr()
        status = status_of(app, *arguments)
        return one_line(status, capsys.readouterr().err)

    return refuse
