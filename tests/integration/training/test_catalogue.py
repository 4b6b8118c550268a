"""A log and a catalogue become a bundle that is served, filtered and scored."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from export.__main__ import app as export
from service.core.bundle.bundle import open_bundle
from service.core.label_filter import MOST_VALUES, parse
from service.core.prediction.predictor import voting_kind
from tests.support.commands import status_of
from tests.support.serving import LocalService, local_service
from training.__main__ import app as training
from training.datasets import lf_xmc
from training.evaluation.evaluation import open_evaluation

ENCODER = Path(__file__).parents[3] / "deploy/demo/encoder"
THINGS = "tent boots lamp stove bottle jacket rope knife".split()
KINDS = "red green blue small large cheap best used new light".split()
CHEAP = {"all": [{"field": "price", "lt": 30}, {"field": "in stock", "eq": True}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables, the data set and the bundle; the log names every second label by its id."""
    folder = tmp_path_factory.mktemp("shop")
    products = [
        (
            *(f"SKU-{number}", f"camping {thing}", f"AB-{number}7-X|campeggio {number}"),
            *(10 * (number + 1), "true" if number % 2 else "false"),
        )
        for number, thing in enumerate([*THINGS, "hammock"])
    ]
    with (folder / "products.csv").open("w") as file:
        csv.writer(file).writerows([("sku", "title", "names", "price", "in stock"), *products])
    clicks = [
        (f"{kind} {thing}", f"SKU-{number}" if place % 2 else f"Camping {thing}")
        for number, thing in enumerate(THINGS)
        for place, kind in enumerate(KINDS)
    ]
    with (folder / "clicks.csv").open("w") as file:
        csv.writer(file).writerows([("query", "clicked"), *clicks, ("odd", "gone")])
    command = ("data", "pairs", "--input", folder / "clicks.csv", "--query", "query")
    command += ("--label", "clicked", "--catalogue", folder / "products.csv")
    command += ("--catalogue-id", "sku", "--catalogue-text", "title", "--catalogue-alias", "names")
    command += ("--label-field", "price", "in stock", "--out", folder / "data")
    assert status_of(training, *command) == 0
    command = ("bundle", "--encoder", ENCODER, "--data", folder / "data", "--hold-out-test")
    assert status_of(export, *command, "--out", folder / "bundle") == 0
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[LocalService]:
    with local_service(folder / "bundle", folder / "state") as service:
        yield service


def keywords(service: LocalService, queries: list[str], **options: Any) -> list[list[dict]]:
    answer = service.post("/predict", {"queries": queries, **options})
    assert answer.status_code == 200, answer.text
    return [result["keywords"] for result in answer.json()["results"]]


def test_labels_have_the_catalogues_ids_texts_and_fields(service: LocalService) -> None:
    label = service.get("/labels/SKU-1").json()
    assert (label["id"], label["text"], label["novel"]) == ("SKU-1", "camping boots", False)
    assert label["metadata"] == {"price": 20, "in stock": True}
    assert service.get("/labels/gone").json()["metadata"] == {}
    [[found]] = keywords(service, ["hammock"], top_k=1, explain=True)
    assert (found["id"], found["novel"]) == ("SKU-8", False)  # which has no clicks
    assert found["metadata"] == {"price": 90, "in stock": False}


def test_labels_are_found_by_their_aliases(service: LocalService) -> None:
    assert service.get("/labels/SKU-8").json()["aliases"] == ["AB-87-X", "campeggio 8"]
    assert "aliases" not in service.get("/labels/gone").json()
    codes = [f"AB-{number}7-X" for number in range(9)]
    for spelled in (str, str.lower, lambda code: code.replace("-", " ")):
        for number, [found] in enumerate(
            keywords(service, [*map(spelled, codes)], top_k=1, explain=True)
        ):
            assert (found["id"], found["match"]) == (f"SKU-{number}", "exact")
            row = found["evidence"][0]
            assert (row["kind"], row["text"]) == ("alias", codes[number])
    page = service.get("/labels?every=true&text=x+AB+37").json()["labels"]
    assert [label["id"] for label in page] == ["SKU-3"]


def test_a_filter_reads_the_fields(service: LocalService) -> None:
    [found] = keywords(service, ["green tent"], top_k=9, filter=CHEAP)
    assert [keyword["id"] for keyword in found] == ["SKU-1"]
    [found] = keywords(service, ["green tent"], top_k=9, filter={"none": CHEAP["all"]})
    assert {keyword["id"] for keyword in found} == {"SKU-2", "SKU-4", "SKU-6", "SKU-8", "gone"}


def test_a_filtered_score_is_that_of_served_answers(
    folder: Path, service: LocalService, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = {"none": [{"field": "price", "gte": 50}], "all": [{"field": "price", "exists": True}]}
    depth, dataset = 3, lf_xmc.read(folder / "data")
    evaluation = open_evaluation(
        open_bundle(folder / "bundle"),
        dataset,
        depth=depth,
        exact=False,
        threads=1,
        report=lambda stage, done, total: None,
        wanted=parse(wanted, at="filter", most=MOST_VALUES),
    )
    test = evaluation.dataset.test
    assert 0 < len(test) < len(dataset.test)
    for memorization in (0.0, 0.4, 1.0):
        retrieved = evaluation.retrieve(voting_kind(memorization))
        ranked = evaluation.ranked(retrieved, memorization)
        options = {"depth": depth, "memorization": memorization, "filter": wanted}
        served = keywords(service, list(test.instances.texts), **options)
        for row, own in enumerate(served):
            columns = ranked.labels[row][ranked.labels[row] >= 0].tolist()
            assert [dataset.labels.uids[column] for column in columns] == [one["id"] for one in own]
            scores = [one["score"] for one in own]
            assert ranked.scores[row, : len(own)].tolist() == pytest.approx(scores)
    score = ("score", "--bundle", folder / "bundle", "--data", folder / "data")
    given = ("--filter", orjson.dumps(wanted).decode(), "--json", folder / "score.json")
    assert status_of(training, *score, *given) == 0
    assert "4 of 10 labels pass the filter" in capsys.readouterr().out
    metrics = orjson.loads((folder / "score.json").read_bytes())["rows"][0]["metrics"]
    served = keywords(service, list(test.instances.texts), filter=wanted)
    relevant = [
        {dataset.labels.uids[column] for column in test.labels_of[row].indices}
        for row in range(len(test))
    ]
    right = [own[0]["id"] in ids for own, ids in zip(served, relevant, strict=True)]
    assert metrics["P@1"] == pytest.approx(100 * np.mean(right))
