"""IRENE from a split of labels to served answers, which are those of the offline evaluation."""

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from export.exported_encoder import open_exported
from service.core.bundle import reranker_files
from service.core.bundle.bundle import open_bundle
from service.core.bundle.manifest import PredictorFacts
from tests.support.commands import Refused, run, status_of
from tests.support.serving import local_service
from tests.support.tiny.reranker import tiny_reranker
from training.__main__ import app as training
from training.checkpoints import second_ranking
from training.datasets import novel_split

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")

RECIPE = """
[encoder]
name = "{model}"
frozen = true
[batch]
instances = 16
[optimizer]
steps = 6
learning_rate = 1e-3
head_learning_rate = 0.05
precision = "fp32"
[validation]
rows = 6
labels = 0.3
every = 3
[system]
name = "irene"
objective = "softmax"
combiner = "{combiner}"
"""
ZERO, ONE = "zero-shot", "one-shot"


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny.training import tiny_dataset
    from training.datasets import lf_xmc

    folder = tmp_path_factory.mktemp("novel")
    lf_xmc.write(tiny_dataset(), folder / "data")
    options = ("--fraction", "0.25", "--seed", "1")
    places = ("--data", folder / "data", "--out", folder / "split")
    assert status_of(training, "split", "novel", *places, *options) == 0
    return folder / "split"


@pytest.fixture(scope="module")
def trained(split: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny.training import write_tiny_checkpoint

    folder = tmp_path_factory.mktemp("irene")
    recipe = folder / "irene.toml"
    recipe.write_text(
        RECIPE.format(model=write_tiny_checkpoint(folder, dropout=0.0), combiner="attention")
    )
    places = ("--data", split / "seen", "--out", folder / "run")
    assert status_of(training, "train", recipe, *places) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def bundle(trained: Path, split: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    data = ("--data", split / "seen")
    encoder = ("--encoder", trained / "best", "--out", folder / "encoder", "--quantize", "none")
    assert run("export", "encoder", *data, *encoder).returncode == 0
    options = ("--encoder", folder / "encoder", "--out", folder / "bundle", "--depth", "12")
    second = with_second_ranking(folder / "encoder", split, folder / "second")
    ended = run("export", "bundle", *data, *options, "--memorization", "0.5", "--reranker", second)
    assert ended.returncode == 0, ended.stderr
    return folder / "bundle"


def with_second_ranking(encoder: Path, split: Path, folder: Path) -> Path:
    """A folder as `rerank` writes it, with trees of a made-up taste, for an exported encoder."""
    folder.mkdir()
    facts = open_exported(encoder).description
    assert facts.weights is not None
    predictor = PredictorFacts(tau=facts.predictor.tau, depth=12, memorization=0.5)
    texts = list(novel_split.read(split).seen.labels.texts)
    files = tiny_reranker(folder, texts, predictor, candidates=8)
    reranker_files.write(files, folder)
    second_ranking.write(files, folder, weights=facts.weights)
    return folder


@pytest.fixture(scope="module")
def measured(bundle: Path, split: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    target = tmp_path_factory.mktemp("measured") / "novel.json"
    places = ("--bundle", bundle, "--data", split, "--json", target)
    assert status_of(training, "evaluate-novel", *places) == 0
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


@pytest.mark.parametrize("setting", [ZERO, ONE])
@pytest.mark.parametrize("rerank", [False, True])
def test_served_answers_are_those_of_the_evaluation(
    setting: str, rerank: bool, measured: Any, bundle: Path, split: Path, tmp_path: Path
) -> None:
    """The whole novel set is posted; P@1 over all labels, and each label's key, are the same."""
    parts = novel_split.read(split)
    labels, test = parts.everything.labels, parts.everything.test
    posted = [
        {"id": labels.uids[column], "text": labels.texts[column]} for column in parts.novel.tolist()
    ]
    if setting == ONE:
        for label, query in zip(posted, parts.revealed(), strict=True):
            label["queries"] = [query]
    with local_service(bundle, tmp_path / "state") as service:
        assert service.post("/labels", {"labels": posted}).status_code == 200
        body = {"queries": list(test.instances.texts), "top_k": 1, "rerank": rerank}
        results = service.post("/predict", body).json()["results"]
    column = {uid: place for place, uid in enumerate(labels.uids)}
    best = [column[result["keywords"][0]["id"]] for result in results]
    truth = np.asarray(test.labels_of.todense()) != 0
    asked = np.flatnonzero(truth.any(axis=1))
    precision = 100 * float(np.mean([truth[row, best[row]] for row in asked]))
    method = "irene+instance" if setting == ONE else "irene+memory"
    method = "reranked" if rerank else method
    assert precision == pytest.approx(figures(measured, setting, "all")[method]["P@1"], abs=1e-9)


@pytest.mark.slow
def test_without_a_combiner_only_texts_are_measured(
    split: Path, tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = trained.parent / "model"
    places = ("--encoder", model, "--data", split / "seen", "--out", tmp_path / "bundle")
    assert run("export", "bundle", *places, "--quantize", "none").returncode == 0
    places = ("--bundle", tmp_path / "bundle", "--data", split, "--json", tmp_path / "novel.json")
    assert status_of(training, "evaluate-novel", *places) == 0
    assert (
        "the bundle has no combiner: a novel label is represented by its text"
        in capsys.readouterr().out
    )
    found = orjson.loads((tmp_path / "novel.json").read_bytes())
    assert found["novel"] is None and found["beside"] == {}
    assert set(figures(found, ZERO, "novel")) == {"text"}


def test_other_data_is_refused(
    refused: Refused, bundle: Path, split: Path, trained: Path, tmp_path: Path
) -> None:
    said = refused(training, "evaluate-novel", "--bundle", bundle, "--data", split / "seen")
    assert "`python -m training split novel` writes such folders" in said
    places = ("--encoder", bundle.parent / "encoder", "--out", tmp_path / "out")
    ended = run("export", "bundle", *places, "--data", split / "all")
    assert ended.returncode == 2
    assert "give the data set that it was trained on" in " ".join(ended.stderr.split())
    assert not (tmp_path / "out").exists()


def test_another_combiner_is_measured_beside(
    refused: Refused, bundle: Path, split: Path, measured: Any, tmp_path: Path
) -> None:
    places = ("--bundle", bundle, "--data", split)
    options = ("--beside", f"again={bundle}", "--json", tmp_path / "novel.json")
    assert status_of(training, "evaluate-novel", *places, *options) == 0
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
        assert message in refused(training, "evaluate-novel", *places, "--beside", wrong)


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
    assert status_of(training, "report", "--streams", target, "--out", tmp_path / "report") == 0
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Novel labels in traffic" in page
    assert (tmp_path / "report" / "stream-1-age.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "report" / "stream-1-clicks-dark.png").is_file()
    target.write_text("{}")
    said = refused(training, "report", "--streams", target, "--out", tmp_path / "again")
    assert "is not what `simulate stream --json` writes" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give either --bundle or --url"),
        (("--url", "ftp://nowhere"), "is not of the form http://HOST:PORT"),
        (("--url", "http://127.0.0.1:1"), "no service is ready there"),
    ],
)
def test_where_nothing_can_be_replayed(
    options: tuple[str, ...], message: str, refused: Refused, split: Path
) -> None:
    assert message in refused(training, "simulate", "stream", "--data", split, *options)
