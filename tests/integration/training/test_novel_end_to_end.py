"""IRENE from the split of the labels to served answers, which equal the offline evaluation's."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from export.__main__ import app as export
from export.exported_encoder import open_exported
from service.core.bundle.bundle import open_bundle
from service.core.bundle.manifest import PredictorFacts
from tests.support.commands import Refused, status_of
from tests.support.serving import local_service
from tests.support.tiny.reranker import write_reranker
from tests.support.tiny.training import tiny_dataset, write_recipe, write_tiny_checkpoint
from tests.support.tiny.unidec import write_unidec_recipe
from training.__main__ import app as training
from training.datasets import lf_xmc
from training.lab import novel_split

IRENE = (
    "encoder.frozen=true",
    "optimizer.steps=6",
    "optimizer.learning_rate=1e-3",
    "optimizer.head_learning_rate=0.05",
    "validation.rows=6",
    "validation.labels=0.3",
    "validation.every=3",
    "system.objective=softmax",
)
ZERO, ONE = "zero-shot", "one-shot"


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("novel")
    lf_xmc.write(tiny_dataset(), folder / "data")
    options = ("--fraction", "0.25", "--seed", "1")
    places = ("--data", folder / "data", "--out", folder / "split")
    assert status_of(training, "split", "novel", *places, *options) == 0
    return folder / "split"


@pytest.fixture(scope="module")
def trained(split: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("irene")
    model = write_tiny_checkpoint(folder, dropout=0.0)
    places = ("--data", split / "seen", "--out", folder / "run", "--set", *IRENE)
    recipe = write_recipe(folder, model=model, system="irene")
    assert status_of(training, "train", recipe, *places) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def bundle(trained: Path, split: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    data = ("--data", split / "seen")
    encoder = ("--encoder", trained / "best", "--out", folder / "encoder", "--quantize", "none")
    assert status_of(export, "encoder", *data, *encoder) == 0
    facts = open_exported(folder / "encoder").description
    assert facts.weights is not None
    chosen = facts.predictor
    predictor = PredictorFacts(tau=chosen.tau, depth=10, memorization=0.5, words=chosen.words)
    texts = novel_split.read(split).seen.labels.texts
    kept = {"candidates": 8, "weights": facts.weights}
    second = write_reranker(folder / "second", texts, predictor, **kept)
    options = ("--encoder", folder / "encoder", "--out", folder / "bundle", "--depth", "10")
    options = (*options, "--memorization", "0.5", "--reranker", second, "--hold-out-test")
    assert status_of(export, "bundle", *data, *options) == 0
    return folder / "bundle"


@pytest.fixture(scope="module")
def measured(bundle: Path, split: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    target = tmp_path_factory.mktemp("measured") / "novel.json"
    places = ("--bundle", bundle, "--data", split, "--json", target)
    assert status_of(training, "score-novel", *places) == 0
    return orjson.loads(target.read_bytes())


def figures(measured: Any, setting: str, candidates: str) -> dict[str, dict[str, float]]:
    return {
        row["method"]: row["metrics"]
        for row in measured["rows"]
        if (row["setting"], row["candidates"]) == (setting, candidates)
    }


def test_a_checkpoint_says_how_novel_labels_are_represented(trained: Path, bundle: Path) -> None:
    chosen = orjson.loads((trained / "best" / "novel.json").read_bytes())
    novel = open_bundle(bundle).manifest.novel
    assert novel is not None
    assert novel.combiner == chosen["combiner"] == "attention"
    assert asdict(novel.refinement) == chosen["refinement"]


def test_every_setting_has_its_methods(measured: Any) -> None:
    ranked, memory = {"text", "irene"}, {"text+memory", "irene+memory"}
    shown = {"text", "irene", "ncm", "rae-instances", "text+instance", "irene+instance"}
    assert set(figures(measured, ZERO, "novel")) == ranked
    assert set(figures(measured, ZERO, "all")) == ranked | memory | {"reranked"}
    assert set(figures(measured, ONE, "novel")) == shown
    assert set(figures(measured, ONE, "all")) == shown | {"reranked"}
    for row in measured["rows"]:
        assert all(0.0 <= row["metrics"][name] <= 100.0 for name in ("P@1", "P@5", "R@30"))


def served_precision(
    bundle: Path, state: Path, split: Path, *, setting: str, **options: object
) -> float:
    """Post all novel labels to a service, and return its P@1 over all labels."""
    parts = novel_split.read(split)
    labels, test = parts.everything.labels, parts.everything.test
    posted: list[dict[str, Any]] = [
        {"id": labels.uids[column], "text": labels.texts[column]} for column in parts.novel.tolist()
    ]
    if setting == ONE:
        for label, query in zip(posted, parts.revealed(), strict=True):
            label["queries"] = [query]
    with local_service(bundle, state) as service:
        assert service.post("/labels", {"labels": posted}).status_code == 200
        body = {"queries": list(test.instances.texts), "top_k": 1, **options}
        results = service.post("/predict", body).json()["results"]
    best = [labels.uids.index(result["keywords"][0]["id"]) for result in results]
    truth = np.asarray(test.labels_of.todense()) != 0
    return 100 * float(truth[np.arange(len(best)), best][truth.any(axis=1)].mean())


@pytest.mark.parametrize("setting", [ZERO, ONE])
@pytest.mark.parametrize("rerank", [False, True])
def test_served_answers_are_those_of_the_evaluation(
    setting: str, rerank: bool, measured: Any, bundle: Path, split: Path, tmp_path: Path
) -> None:
    served = served_precision(bundle, tmp_path / "state", split, setting=setting, rerank=rerank)
    method = "irene+instance" if setting == ONE else "irene+memory"
    found = figures(measured, setting, "all")["reranked" if rerank else method]
    assert served == pytest.approx(found["P@1"], abs=1e-9)


@pytest.mark.parametrize("choose_novel", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_novel_labels_of_unidec_are_measured_as_they_are_served(
    choose_novel: bool,
    split: Path,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """UniDEC has a combiner for novel labels only if its validation chose one."""
    recipe = write_unidec_recipe(tmp_path, model=trained.parent / "model")
    data, run_folder, bundle = ("--data", split / "seen"), tmp_path / "run", tmp_path / "bundle"
    chosen = f"system.choose_novel={str(choose_novel).lower()}"
    hidden = ("--set", "validation.rows=6", "validation.labels=0.3", chosen)
    assert status_of(training, "train", recipe, *data, "--out", run_folder, *hidden) == 0
    source = ("--encoder", run_folder / "best", "--out", bundle)
    options = ("--quantize", "none", "--depth", "10", "--memorization", "0.5", "--hold-out-test")
    assert status_of(export, "bundle", *data, *source, *options) == 0
    places = ("--bundle", bundle, "--data", split, "--json", tmp_path / "novel.json")
    capsys.readouterr()
    assert status_of(training, "score-novel", *places) == 0

    found = orjson.loads((tmp_path / "novel.json").read_bytes())
    without = "the bundle has no combiner: a novel label is represented by its text"
    assert (without in capsys.readouterr().out) == (found["novel"] is None)
    has_combiner = (run_folder / "best/novel.json").is_file()
    assert (open_bundle(bundle).novel is not None) == (found["novel"] is not None) == has_combiner
    assert choose_novel or not has_combiner
    method = "irene" if has_combiner else "text"
    assert found["beside"] == {}
    assert set(figures(found, ZERO, "novel")) == {"text", method}
    for setting, kind in ((ZERO, "memory"), (ONE, "instance")):
        served = served_precision(bundle, tmp_path / setting, split, setting=setting)
        one = figures(found, setting, "all")[f"{method}+{kind}"]
        assert served == pytest.approx(one["P@1"], abs=1e-9)


def test_other_data_is_refused(
    refused: Refused, bundle: Path, split: Path, trained: Path, tmp_path: Path
) -> None:
    said = refused(training, "score-novel", "--bundle", bundle, "--data", split / "seen")
    assert "`keymatch lab split novel` writes such folders" in said
    places = ("--encoder", bundle.parent / "encoder", "--out", tmp_path / "out")
    said = refused(export, "bundle", *places, "--data", split / "all")
    assert "give the data set that it was trained on" in said
    assert not (tmp_path / "out").exists()


def test_another_combiner_is_measured_beside(
    refused: Refused, bundle: Path, split: Path, measured: Any, tmp_path: Path
) -> None:
    places = ("--bundle", bundle, "--data", split)
    options = ("--beside", f"again={bundle}", "--json", tmp_path / "novel.json")
    assert status_of(training, "score-novel", *places, *options) == 0
    found = orjson.loads((tmp_path / "novel.json").read_bytes())
    assert list(found["beside"]) == ["again"]
    for setting, candidates in ((ZERO, "novel"), (ZERO, "all"), (ONE, "novel"), (ONE, "all")):
        rows = figures(found, setting, candidates)
        assert rows.pop("again") == rows["irene"]
        assert rows == figures(measured, setting, candidates)
    for wrong, message in (
        ("bundle", "--beside takes NAME=BUNDLE, not 'bundle'"),
        (f"irene={bundle}", "'irene' is the name of a method"),
    ):
        assert message in refused(training, "score-novel", *places, "--beside", wrong)


def test_a_stream_is_replayed_through_a_real_service_and_drawn(
    bundle: Path, split: Path, tmp_path: Path, refused: Refused
) -> None:
    target = tmp_path / "stream.json"
    places = ("--bundle", bundle, "--data", split, "--json", target)
    assert status_of(training, "simulate", "stream", *places, "--one-shot", "--learn") == 0
    found = orjson.loads(target.read_bytes())
    assert found["asked"] == sum(bucket["asked"] for bucket in found["by_age"])
    assert found["asked"] == sum(bucket["asked"] for bucket in found["by_clicks"])
    assert found["by_age"][-1]["recall"]["R@100"] == 100.0
    assert status_of(training, "report", "--stream", target, "--out", tmp_path / "report") == 0
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Novel labels in traffic" in page
    assert "clicks learned for it, at least" in page
    target.write_text("{}")
    said = refused(training, "report", "--stream", target, "--out", tmp_path / "again")
    assert "is not what `simulate stream --json` writes" in said
