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
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import open_bundle
from service.core.prediction.many_queries import RankedLabels
from service.core.prediction.predictor import voting_kind
from tests.support.commands import run
from tests.support.serving import ServerProcess, server_process
from tests.support.tiny.training import tiny_dataset
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.evaluation.evaluation import Evaluation, open_evaluation
from training.evaluation.prediction import Neighbours, OfflineMemory, predict

REPOSITORY = Path(__file__).parents[3]
DATA = REPOSITORY.parent / "shared/data/debian-seealso"
ENCODER = REPOSITORY / "deploy/demo/encoder"
MEMORIZATIONS = (0.0, 0.4, 1.0)
TOP_K, QUERIES_A_REQUEST = 100, 64

Ranking = list[tuple[str, float]]  # ids and scores, best first


def compare(bundle: Path, dataset: Dataset, tmp_path: Path, *, depth: int) -> None:
    """Assert that the service and both ways offline rank all test rows alike."""
    offline = open_evaluation(
        open_bundle(bundle),
        dataset,
        depth=depth,
        exact=False,
        threads=2,
        report=lambda stage, done, total: None,
    )
    with server_process(bundle, tmp_path / "state", tmp_path / "log") as server:
        for memorization in MEMORIZATIONS:
            served = list(
                answers(
                    server, dataset.test.instances.texts, memorization=memorization, depth=depth
                )
            )
            retrieved = offline.retrieve(voting_kind(memorization))
            evaluated = offline.ranked(retrieved, memorization)
            assert served == rankings(evaluated, dataset)
            scored = as_scored(offline, retrieved, memorization)
            assert served == rankings(scored, dataset)
            assert any(served)


def answers(
    server: ServerProcess, queries: Sequence[str], *, memorization: float, depth: int
) -> Iterator[Ranking]:
    """The served ranking of each query."""
    for start in range(0, len(queries), QUERIES_A_REQUEST):
        asked = list(queries[start : start + QUERIES_A_REQUEST])
        options = {"top_k": TOP_K, "memorization": memorization, "depth": depth}
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


def export(data: Path, bundle: Path, *, seconds: int) -> None:
    source = ("--encoder", ENCODER, "--data", data)
    ended = run("export", "bundle", *source, "--out", bundle, seconds=seconds)
    assert ended.returncode == 0, ended.stderr


def test_all_rows_of_a_tiny_data_set(tmp_path: Path) -> None:
    data, bundle = tmp_path / "colours", tmp_path / "bundle"
    lf_xmc.write(tiny_dataset(), data)
    export(data, bundle, seconds=120)
    compare(bundle, lf_xmc.read(data), tmp_path, depth=20)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_test_rows_of_debian_seealso(tmp_path: Path) -> None:
    if not DATA.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"the data set {DATA.name} is absent")
        pytest.skip(f"SERVED ANSWERS NOT COMPARED: the data set {DATA.name} is absent")
    bundle = tmp_path / "bundle"
    export(DATA, bundle, seconds=1200)
    compare(bundle, lf_xmc.read(DATA), tmp_path, depth=100)
