"""MOGIC: an oracle reads metadata and guides a disciple without; it is not exported itself."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import load_file

from export.__main__ import app as export
from tests.support.commands import status_of
from tests.support.tiny.training import (
    losses,
    tiny_dataset,
    train_tiny,
    with_colour_metadata,
    write_recipe,
    write_tiny_checkpoint,
)
from training.__main__ import app as training
from training.checkpoints.run_json import metadata_of_run, read_run
from training.datasets import lf_xmc
from training.datasets.metadata_texts import with_metadata
from training.evaluation import results, robustness
from training.evaluation.robustness import Condition

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An oracle, a disciple that it guided, and the same system by itself."""
    folder = tmp_path_factory.mktemp("mogic")
    lf_xmc.write(with_colour_metadata(tiny_dataset()), folder / "data")
    model = write_tiny_checkpoint(folder, dropout=0.0)
    write_recipe(folder, model=model, system="ngame")
    for name, settings in (
        ("oracle", ["metadata.append=both"]),
        ("alone", []),
        ("guided", [f"guidance.oracle={folder / 'oracle'}"]),
    ):
        assert train_tiny(folder, name, *settings) == 0
    return folder


def test_the_oracle_guides_the_disciple(folder: Path) -> None:
    alone, guided = (losses(folder / name) for name in ("alone", "guided"))
    assert guided[0] > alone[0] + 0.01, "two losses are added to the system's own"
    assert guided[-1] < guided[0]

    weights = [load_file(folder / name / "best" / "model.safetensors") for name in
               ("alone", "guided")]  # fmt: skip
    assert any(not np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("name", ["oracle", "guided"])
def test_both_are_scored_on_the_texts_that_they_read(folder: Path, name: str) -> None:
    places = ("--run", folder / name, "--data", folder / "data")
    assert status_of(training, "score", *places) == 0
    examples = orjson.loads((folder / name / "examples.json").read_bytes())
    queries = [example["query"] for example in examples["queries"]]
    assert all((" [SEP] is " in query) == (name == "oracle") for query in queries)
    guidance = results.read(folder / name).settings["guidance"]
    assert guidance["oracle"] == ("oracle" if name == "guided" else None), "no folder, its name"


def test_an_oracle_is_not_exported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = ("--encoder", folder / "oracle" / "best", "--data", folder / "data")
    assert status_of(export, "bundle", *source, "--out", folder / "bundle") == 2
    assert "is an oracle" in capsys.readouterr().err
    assert not (folder / "bundle").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["guidance.oracle=nowhere"], "is missing: the run has not finished"),
        (["guidance.alpha=-1"], "alpha"),
        (["guidance.own_loss=0"], "own_loss = 0 needs an oracle"),
        (
            ["guidance.own_loss=0", "guidance.alpha=0", "guidance.beta=0"],
            "one of own_loss, alpha and beta must be above 0",
        ),
        (["metadata.append=some"], "append"),
    ],
)
def test_wrong_settings_are_said(
    folder: Path, settings: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(folder, "wrong", *settings) == 2
    assert message in capsys.readouterr().err


def test_an_oracle_loses_by_wrong_metadata_and_a_disciple_does_not_read_any(folder: Path) -> None:
    places = ("--data", folder / "data", "--out", folder / "robustness")
    runs = ("--runs", folder / "oracle", folder / "guided")
    assert status_of(training, "robustness", *runs, *places) == 0

    found = robustness.read(folder / "robustness" / robustness.FILE)
    oracle, guided = found.runs
    assert (oracle.role, guided.role) == ("oracle", "MOGIC (ngame)")
    assert (oracle.guided_by, guided.guided_by) == (None, "oracle")
    assert len(oracle.measured) == 1 + 2 + 6 + 8
    assert [one.condition for one in guided.measured] == [robustness.NOT_READ]
    replaced = oracle.under(Condition(metadata="replaced", share=0.6))
    true = oracle.under(robustness.TRUE)
    assert true is not None and replaced is not None and len(replaced.draws) == 3
    assert replaced.mean("P@1") != true.mean("P@1")
    assert (folder / "robustness" / "robustness.png").read_bytes().startswith(b"\x89PNG")


def test_figures_are_those_of_score_and_of_encoding_everything_again(folder: Path) -> None:
    from training.experiments.metadata_conditions import conditions, measure_run
    from training.experiments.sweeps import score_encoder

    dataset, run = lf_xmc.read(folder / "data"), folder / "oracle"
    found = measure_run(run, dataset, seeds=(13,), precision="fp32", report=lambda *_: None)
    settings = metadata_of_run(read_run(run), run)
    metadata_of = dataset.test.metadata_of
    anew = conditions(metadata_of, lambda banked: metadata_of, seeds=(13,))
    for condition, [matrix] in anew:
        if condition.metadata.startswith("predicted"):
            continue
        changed = replace(dataset, test=replace(dataset.test, metadata_of=matrix))
        fused, best = with_metadata(changed, settings), run / "best"
        metrics = score_encoder(str(best), fused, folder=best).results[0][0].metrics
        one = found.under(condition)
        assert one is not None
        assert one.draws[0] == pytest.approx({m: metrics[m] for m in robustness.METRICS})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--runs", "oracle", "--seeds", "1", "1"), "different numbers from 0 on, not 1 1"),
        (("--runs", "oracle", "--seeds", "-1"), "different numbers from 0 on, not -1"),
        (("--runs", "oracle", "nowhere"), "is missing: the run has not finished"),
        (("--runs", "oracle", "copies/oracle"), "both named oracle"),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_measured(
    folder: Path,
    options: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = folder / "copies" / "oracle"
    copy.mkdir(parents=True, exist_ok=True)
    (copy / "run.json").write_bytes((folder / "oracle" / "run.json").read_bytes())
    runs = [folder / word if word[0] in "onc" else word for word in options]
    places = ("--data", folder / "data", "--out", folder / "refused")
    assert status_of(training, "robustness", *runs, *places) == 2
    said = capsys.readouterr().err
    assert message in said and "measuring" not in said


def test_the_tables_and_the_report_read_what_was_measured(folder: Path) -> None:
    group = folder / "measured" / "colours"
    for name in ("oracle", "alone", "guided"):
        assert status_of(training, "score", "--run", folder / name, "--data", folder / "data") == 0
        results.write(replace(results.read(folder / name), name=name), group / name)
    runs = ("--runs", folder / "oracle", folder / "guided", "--data", folder / "data")
    assert status_of(training, "robustness", *runs, "--out", group, "--seeds", "1", "2") == 0

    page = folder / "page.md"
    assert status_of(training, "tables", "--measured", group.parent, "--out", page) == 0
    text = page.read_text()
    for row in ("MOGIC (ngame) | guided", "ngame | alone", "oracle | oracle | predicted"):
        assert f"| {row} |" in text
    assert "](colours/robustness.png)" in text and str(folder) not in text

    out = folder / "report"
    places = ("--robustness", group / robustness.FILE, "--out", out)
    assert status_of(training, "report", *places) == 0
    assert (out / "robustness-colours.png").is_file()
    assert "Missing and wrong metadata" in (out / "report.html").read_text()


def test_data_without_metadata_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lf_xmc.write(tiny_dataset(), folder / "no-metadata")
    places = ("--data", folder / "no-metadata", "--out", folder / "of-none")
    assert status_of(training, "robustness", "--runs", folder / "oracle", *places) == 2
    assert "changes metadata items, and data set colours has none" in capsys.readouterr().err
