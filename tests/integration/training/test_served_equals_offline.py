"""What `POST /predict` answers is what the offline predictor ranks: same ids, same bits of scores.

A real server answers every test row of a data set through HTTP. The same rows are ranked offline

- as `training evaluate` does it: by a view of the bundle, searched through the bundle's graph;
- as `training score` does it: by `OfflineMemory`, made of the bundle's keys and the data set's
  training rows, from the keys that the graph retrieved.

`score` itself scans all keys in place of the graph, which may retrieve other keys; whether it does
is a matter of the index and not compared here. Scores are compared as JSON gives them, which
writes the shortest text that reads back as the same double.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from export.__main__ import app as export_app
from export.encoder_json import PredictorDefaults
from export.exported_encoder import open_exported
from service.core.bundle import reranker_files
from service.core.bundle.bundle import open_bundle
from service.core.bundle.manifest import PredictorFacts
from service.core.prediction.many_queries import RankedLabels
from service.core.prediction.predictor import voting_kind
from tests.support.commands import run, status_of
from tests.support.serving import ServerProcess, server_process
from tests.support.tiny.reranker import tiny_reranker
from tests.support.tiny.training import (
    tiny_dataset,
    train_tiny,
    with_colour_metadata,
    write_recipe,
    write_tiny_checkpoint,
)
from training.checkpoints import second_ranking
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.evaluation.evaluation import Evaluation, Items, open_evaluation
from training.evaluation.prediction import Neighbours, OfflineMemory, predict

REPOSITORY = Path(__file__).parents[3]
DATA = REPOSITORY.parent / "shared/data/debian-seealso"
ENCODER = REPOSITORY / "deploy/demo/encoder"
MEMORIZATIONS = (0.0, 0.4, 1.0)
TOP_K, QUERIES_A_REQUEST = 100, 64

Ranking = list[tuple[str, float]]  # ids and scores, best first


def compare(
    bundle: Path, dataset: Dataset, tmp_path: Path, *, depth: int, items: Items = "predicted"
) -> None:
    """Assert that the service and both ways offline rank all test rows alike.

    A bundle with a second ranking is compared with both rankings; `score` knows the first alone.
    """
    for rerank in (False, True) if open_bundle(bundle).reranker is not None else (None,):
        place = tmp_path / f"rerank-{rerank}"
        _compare(bundle, dataset, place, depth=depth, items=items, rerank=rerank)


def _compare(
    bundle: Path,
    dataset: Dataset,
    tmp_path: Path,
    *,
    depth: int,
    items: Items,
    rerank: bool | None,
) -> None:
    offline = open_evaluation(
        open_bundle(bundle),
        dataset,
        depth=depth,
        exact=False,
        threads=2,
        report=lambda stage, done, total: None,
        items=items,
        rerank=rerank,
    )
    tmp_path.mkdir(parents=True, exist_ok=True)
    with server_process(bundle, tmp_path / "state", tmp_path / "log") as server:
        for memorization in MEMORIZATIONS:
            options = {
                "top_k": TOP_K,
                "memorization": memorization,
                "depth": depth,
                "rerank": rerank,
            }
            if items == "linked":
                served = list(answers_to_linked(server, dataset, options))
            else:
                served = list(answers(server, dataset.test.instances.texts, options))
            retrieved = offline.retrieve(voting_kind(memorization))
            evaluated = offline.ranked(retrieved, memorization)
            assert served == rankings(evaluated, dataset)
            if not rerank:
                scored = as_scored(offline, retrieved, memorization)
                assert served == rankings(scored, dataset)
            assert any(served)


def answers_to_linked(
    server: ServerProcess, dataset: Dataset, options: Mapping[str, object]
) -> Iterator[Ranking]:
    """The served ranking of each test row, whose request names its items, the rarest first."""
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
    """The rows ranked by the memory that `training score` uses."""
    dataset = offline.dataset
    memory = OfflineMemory(
        keys=np.asarray(offline.view.bundle.keys),
        labels_of=dataset.train.labels_of,
        label_ids=dataset.labels.uids,
    )
    return predict(
        memory,
        retrieved,
        tau=offline.tau,
        memorization=memorization,
        top_k=TOP_K,
        order=memory.label_order,
    )


def rankings(ranked: RankedLabels, dataset: Dataset) -> list[Ranking]:
    """Ids and scores of the first `TOP_K` ranked labels of each row."""
    return [
        [
            (dataset.labels.uids[label], score)
            for label, score in zip(labels[:TOP_K], scores[:TOP_K], strict=True)
            if label >= 0
        ]
        for labels, scores in zip(ranked.labels.tolist(), ranked.scores.tolist(), strict=True)
    ]


def with_second_ranking(dataset: Dataset, folder: Path) -> Path:
    """A folder as `rerank` writes it, with trees of a made-up taste, for the demo's encoder."""
    folder.mkdir()
    predictor = manifest_facts(open_exported(ENCODER).description.predictor)
    files = tiny_reranker(folder, list(dataset.labels.texts), predictor, candidates=10)
    reranker_files.write(files, folder)
    second_ranking.write(files, folder, weights="made up")
    return folder


def manifest_facts(defaults: PredictorDefaults) -> PredictorFacts:
    return PredictorFacts(
        tau=defaults.tau, depth=defaults.depth, memorization=defaults.memorization
    )


def export(data: Path, bundle: Path, *options: str | Path, seconds: int) -> None:
    source = ("--encoder", ENCODER, "--data", data)
    ended = run("export", "bundle", *source, *options, "--out", bundle, seconds=seconds)
    assert ended.returncode == 0, ended.stderr


def test_all_rows_of_a_tiny_data_set(tmp_path: Path) -> None:
    data, bundle = tmp_path / "colours", tmp_path / "bundle"
    lf_xmc.write(tiny_dataset(), data)
    dataset = lf_xmc.read(data)
    second = with_second_ranking(dataset, tmp_path / "second")
    export(data, bundle, "--reranker", second, seconds=120)
    compare(bundle, dataset, tmp_path, depth=20)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")
def test_all_rows_of_an_oak_bundle_with_predicted_and_with_given_items(tmp_path: Path) -> None:
    dataset, bundle = with_several_items(with_colour_metadata(tiny_dataset())), tmp_path / "bundle"
    lf_xmc.write(dataset, tmp_path / "data")
    write_recipe(tmp_path, model=write_tiny_checkpoint(tmp_path, dropout=0.0), system="oak")
    settings = ("optimizer.head_learning_rate=0.02", "system.attended=2")
    assert train_tiny(tmp_path, "run", *settings, recipe="oak") == 0
    source = ("--encoder", tmp_path / "run" / "best", "--data", tmp_path / "data")
    assert status_of(export_app, "bundle", *source, "--out", bundle) == 0

    dataset = lf_xmc.read(tmp_path / "data")
    compare(bundle, dataset, tmp_path / "predicted", depth=20)
    compare(bundle, dataset, tmp_path / "linked", depth=20, items="linked")


def with_several_items(dataset: Dataset) -> Dataset:
    """Test rows have no item, one item or two, so that rows without any are compared, too."""
    links = dataset.test.metadata_of.toarray()
    links[0], links[1:9, :] = 0.0, np.roll(links[1:9], 1, axis=0) + links[1:9] > 0
    test = replace(dataset.test, metadata_of=csr_matrix(links))
    assert {0, 1, 2} == set(np.diff(test.metadata_of.indptr).tolist())
    return replace(dataset, test=test)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_test_rows_of_debian_seealso(tmp_path: Path) -> None:
    if not DATA.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"the data set {DATA.name} is absent")
        pytest.skip(f"SERVED ANSWERS NOT COMPARED: the data set {DATA.name} is absent")
    bundle, dataset = tmp_path / "bundle", lf_xmc.read(DATA)
    second = with_second_ranking(dataset, tmp_path / "second")
    export(DATA, bundle, "--reranker", second, seconds=1200)
    compare(bundle, dataset, tmp_path, depth=100)
