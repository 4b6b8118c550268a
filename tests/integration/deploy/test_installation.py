"""A new user's steps: sdist, wheel, empty environment, data, bundle, and service."""

import os
import subprocess
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.child_server import HOST, Client, Server, stopped_afterwards

ROOT = Path(__file__).parents[3]
EXTRAS = "cpu,demo"  # as in the README's demo, without torch
KINDS = ("red", "green", "blue", "small", "large", "cheap")
NOUNS = ("tent", "lamp", "stove", "bottle", "jacket", "rope")


@dataclass(frozen=True, kw_only=True)
class Installed:
    """The command `keymatch` in its own environment, and a project folder to run it in."""

    command: Path
    wheel: Path
    encoder: Path  # the demo's encoder, from the sdist
    project: Path

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run the command, which must succeed."""
        words = [str(self.command), *map(str, arguments)]
        return called(words, cwd=self.project)

    @contextmanager
    def service(self, bundle: str) -> Iterator[Client]:
        """Serve a bundle from the project's folder; the service must stop with exit status 0."""
        command = ["env", f"--chdir={self.project}", str(self.command), "serve", "--port", "0"]
        command += ["--bundle", bundle, "--state", "state"]
        server = Server(command, log=self.project / "log", environment=environment())
        with stopped_afterwards(server), closing(Client(HOST, server.port)) as client:
            yield client


def environment() -> dict[str, str]:
    """Return this process's environment without Python's variables, which may name the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def called(words: list[str], *, cwd: Path, skip: bool = False) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=environment())
    if ended.returncode and skip and os.environ.get("CI") != "true":
        pytest.skip(f"NOT TESTED: pip installs nothing here: {ended.stderr[-300:]}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installation")
    venv.create(folder / "builder", with_pip=True)
    builder = str(folder / "builder/bin/python")
    called([builder, "-m", "pip", "install", "-q", "build"], cwd=folder, skip=True)
    called([builder, "-m", "build", "--outdir", str(folder / "dist"), str(ROOT)], cwd=folder)
    [sdist] = (folder / "dist").glob("*.tar.gz")
    [wheel] = (folder / "dist").glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    [source] = (folder / "source").iterdir()
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv/bin/python")
    called([python, "-m", "pip", "install", "-q", f"{wheel}[{EXTRAS}]"], cwd=folder)
    # A project whose folders have the same names as Keymatch's packages.
    for name in ("service", "training", "export"):
        (folder / "project" / name).mkdir(parents=True)
        (folder / "project" / name / "__init__.py").write_text("raise SystemExit('not mine')\n")
    return Installed(
        command=folder / "venv/bin/keymatch",
        wheel=wheel,
        encoder=source / "deploy/demo/encoder",
        project=folder / "project",
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_holds_the_packages_and_the_compiled_code(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    of_package = {name.partition("/")[0] for name in names}
    assert {name for name in of_package if ".dist-info" not in name} == {
        *("service", "training", "export", "keymatch_start.py")
    }
    assert {Path(name).name for name in names if name.endswith(".so")} == {
        *("libvotes.so", "libtexts.so")
    }
    assert not [name for name in names if name.startswith("training/lab")]
    assert [name for name in names if name.startswith("training/recipes/rae.toml")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_stranger_makes_a_bundle_and_serves_it(installed: Installed) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert installed.run("--version").stdout.strip() == project["version"]
    research = installed.run("lab", "--help").stdout
    assert "│ rerank " in research and "│ peer " not in research
    rows = [f"{kind} {noun},{noun}s" for kind in KINDS for noun in NOUNS]
    (installed.project / "clicks.csv").write_text("\n".join(["query,keyword", *rows]) + "\n")
    columns = ("--query", "query", "--label", "keyword")
    installed.run("data", "pairs", "--input", "clicks.csv", *columns, "--out", "data")
    places = ("--data", "data", "--out", "bundle", "--hold-out-test")
    installed.run("export", "bundle", "--encoder", installed.encoder, *places)
    assert "files verified" in installed.run("check", "--bundle", "bundle").stdout
    with installed.service("bundle") as client:
        [answer] = client.post("/predict", {"queries": ["red tent"], "top_k": 1})["results"]
        assert answer["keywords"][0]["text"] == "tents"
        labels = [{"text": "password manager", "queries": ["bitwarden"]}]
        version = client.post("/labels", {"labels": labels})["version"]
        asked = {"queries": ["bitwarden"], "top_k": 1, "min_version": version}
        [answer] = client.post("/predict", asked)["results"]
        assert answer["keywords"][0]["text"] == "password manager"
        client.post("/admin/snapshot", {"bundle": "next"})
    assert "label.put" in installed.run("log", "--state", "state").stdout
    scored = installed.run("score", "--bundle", "bundle", "--data", "data")
    assert "P@1" in scored.stdout
