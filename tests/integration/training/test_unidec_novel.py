"""Novel labels of a UniDEC checkpoint: the offline figures are those of the served answers."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from export.__main__ import app as export
from service.core.bundle.bundle import open_bundle
from tests.support.commands import status_of
from tests.support.serving import local_service
from tests.support.tiny.unidec import write_unidec_recipe
from training.__main__ import app as training
from training.datasets import lf_xmc, novel_split

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny.training import tiny_dataset

    folder = tmp_path_factory.mktemp("novel")
    lf_xmc.write(tiny_dataset(), folder / "data")
    places = ("--data", folder / "data", "--out", folder / "split")
    assert status_of(training, "split", "novel", *places, "--fraction", "0.25", "--seed", "1") == 0
    return folder / "split"


def made_bundle(folder: Path, split: Path, *, choose_novel: bool) -> Path:
    """A bundle of the seen labels, by UniDEC with or without a combiner for novel ones."""
    from tests.support.tiny.training import write_tiny_checkpoint

    model = write_tiny_checkpoint(folder, dropout=0.0)
    recipe, data = write_unidec_recipe(folder, model=model), ("--data", split / "seen")
    hidden = ("--set", "validation.rows=6", "validation.labels=0.3")
    chosen = (f"system.choose_novel={str(choose_novel).lower()}",)
    places = (*data, "--out", folder / "run")
    assert status_of(training, "train", recipe, *places, *hidden, *chosen) == 0
    options = ("--quantize", "none", "--depth", "12", "--memorization", "0.5")
    source = ("--encoder", folder / "run/best", "--out", folder / "bundle")
    assert status_of(export, "bundle", *data, *source, *options) == 0
    return folder / "bundle"


def measured(bundle: Path, split: Path, target: Path) -> Any:
    places = ("--bundle", bundle, "--data", split, "--json", target)
    assert status_of(training, "evaluate-novel", *places) == 0
    return orjson.loads(target.read_bytes())


def served_precision(bundle: Path, state: Path, split: Path, *, one_shot: bool) -> float:
    """P@1 of a service to which the novel labels were posted, with their queries if `one_shot`."""
    parts = novel_split.read(split)
    labels, test = parts.everything.labels, parts.everything.test
    first = parts.facts.seen
    posted: list[dict[str, Any]] = [
        {"id": uid, "text": text}
        for uid, text in zip(labels.uids[first:], labels.texts[first:], strict=True)
    ]
    if one_shot:
        for label, query in zip(posted, parts.revealed(), strict=True):
            label["queries"] = [query]
    with local_service(bundle, state) as service:
        assert service.post("/labels", {"labels": posted}).status_code == 200
        body = {"queries": list(test.instances.texts), "top_k": 1}
        results = service.post("/predict", body).json()["results"]
    best = [labels.uids.index(result["keywords"][0]["id"]) for result in results]
    truth = test.labels_of.toarray() != 0
    right = truth[np.arange(len(best)), best]
    return 100 * float(right[truth.any(axis=1)].mean())


@pytest.mark.parametrize("choose_novel", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_novel_labels_are_measured_as_they_are_served(
    choose_novel: bool, split: Path, tmp_path: Path
) -> None:
    bundle = made_bundle(tmp_path, split, choose_novel=choose_novel)

    found = measured(bundle, split, tmp_path / "novel.json")

    has_combiner = (tmp_path / "run/best/novel.json").is_file()
    assert (open_bundle(bundle).novel is not None) == (found["novel"] is not None) == has_combiner
    assert choose_novel or not has_combiner
    method = "irene" if has_combiner else "text"
    at_one = {
        (row["setting"], row["method"]): row["metrics"]["P@1"]
        for row in found["rows"]
        if row["candidates"] == "all"
    }
    assert (("zero-shot", "irene") in at_one) == has_combiner
    for setting, kind in (("zero-shot", "memory"), ("one-shot", "instance")):
        served = served_precision(bundle, tmp_path / setting, split, one_shot=setting == "one-shot")
        assert served == pytest.approx(at_one[setting, f"{method}+{kind}"], abs=1e-9)
