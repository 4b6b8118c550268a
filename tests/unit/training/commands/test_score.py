"""`score` for a run, an encoder and a bundle, with weights, and for one of UniDEC's heads."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.core.bundle.label_details import Details, dump
from service.core.types import Role
from tests.support.commands import status_of
from tests.support.tiny import export, training
from tests.support.tiny.bundles import LABELS, make_bundle
from tests.support.tiny.confidence import with_confidence
from tests.support.tiny.training import RECIPE, tiny_dataset
from training.__main__ import app
from training.checkpoints.choices import read_choices, write_choices
from training.checkpoints.label_keys import LABEL_KEYS, read_label_keys
from training.commands.score import NO_CLASSIFIERS
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.evaluation import posted_labels, results
from training.evaluation.examples import read_examples
from training.evaluation.noise import KINDS
from training.evaluation.weighted_metrics import ALL_ALIKE, SHOWN_WEIGHTED
from training.models.torch_encoder import load_encoder
from training.models.two_heads import heads_of, with_share
from training.selection.memory_choices import MEMORIZATIONS

ENCODER, CLASSIFIER = 16, 12  # dimensions of UniDEC's heads D and C
HEADS = f"[heads]\nencoder = {ENCODER}\nclassifier = {CLASSIFIER}\n"
Said = pytest.CaptureFixture[str]


@pytest.fixture
def out(two_runs: Path, tmp_path: Path) -> Path:
    """A copy of the RAE-XMC run that a test may change."""
    return shutil.copytree(two_runs / "rae", tmp_path / "run")


@pytest.fixture(scope="module")
def unidec(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A UniDEC run with made-up label keys, scored at its chosen share."""
    folder = tmp_path_factory.mktemp("unidec")
    recipe, out = folder / "unidec.toml", folder / "run"
    recipe.write_text(
        RECIPE.format(model=model, system="unidec").replace("[batch]", HEADS + "[batch]")
    )
    assert status_of(app, "train", recipe, "--data", data, "--out", out) == 0
    drawn = np.random.default_rng(0).standard_normal((16, ENCODER + CLASSIFIER))
    keys = with_share(drawn.astype(np.float32), share_of(out), encoder=ENCODER)
    np.save(out / "best" / LABEL_KEYS, keys)
    assert status_of(app, "score", "--run", out, "--data", data) == 0
    return out


def share_of(run: Path) -> float:
    heads = heads_of(load_encoder(str(run / "best")).model)
    assert heads is not None
    return float(heads.share)


def at_share(unidec: Path, data: Path, out: Path, share: float) -> results.Results:
    places = ("--run", unidec, "--data", data, "--out", out)
    assert status_of(app, "score", *places, "--head-share", share) == 0
    return results.read(out)


@pytest.mark.parametrize("system", ["rae", "one-versus-all"])
def test_a_run_is_scored_at_what_was_chosen_and_at_all_else(
    system: str, model: Path, data: Path, tmp_path: Path
) -> None:
    recipe, out = tmp_path / "mine.toml", tmp_path / "run"
    recipe.write_text(RECIPE.format(model=model, system=system))
    assert status_of(app, "train", recipe, "--data", data, "--out", out) == 0
    assert status_of(app, "score", "--run", out, "--data", data, "--name", "mine") == 0

    scored = results.read(out)
    chosen = orjson.loads((out / "best" / "keymatch.json").read_bytes())
    first, *others = scored.results
    assert (scored.name, scored.system, scored.dataset) == ("mine", system, "colours")
    assert first.chosen
    assert (first.memorization, first.depth) == (chosen["memorization"], chosen["depth"])
    assert not any(other.chosen for other in others)
    assert {other.method for other in others} >= {"labels only", "instances only", "separate"}
    untrained = [] if system == "one-versus-all" else [0, 0, 0]
    assert [check.step for check in scored.history] == [*untrained, 2, 2, 2, 4, 4, 4]
    assert scored.training_seconds is not None
    examples = read_examples(out)
    assert examples is not None and len(examples.queries) == 16
    assert (examples.against is not None) == (system == "rae")  # only RAE-XMC has a step 0


def test_the_run_is_compared_with_the_untrained_memory_that_training_kept(
    out: Path, model: Path, data: Path, capsys: Said
) -> None:
    score = ("score", "--run", out, "--data", data)
    for kept in (True, False):
        assert status_of(app, *score) == 0
        said = f"against the memory of {model} before this training: " in capsys.readouterr().out
        examples = read_examples(out)
        assert examples is not None and said is kept
        assert (examples.against is not None and examples.against.rows == 16) is kept
        (out / "untrained.safetensors").unlink(missing_ok=True)


def test_a_run_votes_with_the_relevance_that_was_chosen_or_given(
    out: Path, data: Path, tmp_path: Path, capsys: Said
) -> None:
    dataset, weighted = lf_xmc.read(data), tmp_path / "weighted"
    dataset.train.labels_of.data[::2] = 100.0
    lf_xmc.write(dataset, weighted)

    def figures(folder: Path, *options: str) -> list[dict[str, float]]:
        assert status_of(app, "score", "--run", out, "--data", folder, *options) == 0
        return [result.metrics for result in results.read(out).results]

    equal, given = figures(data), figures(weighted)
    assert "relevance" not in capsys.readouterr().out
    assert given != equal
    assert figures(weighted, "--relevance", "binary") == equal
    chosen = read_choices(out / "best")
    assert chosen is not None
    write_choices(out / "best", replace(chosen, relevance="binary"))
    assert figures(weighted) == equal
    assert "votes with relevance binary" in capsys.readouterr().out
    assert figures(weighted, "--relevance", "given") == given


def weighted_test(dataset: Dataset, folder: Path) -> Path:
    """Write the data set with different weights for the labels of each test row."""
    labels_of = dataset.test.labels_of.copy()
    labels_of.data[::2] = 5.0
    lf_xmc.write(replace(dataset, test=replace(dataset.test, labels_of=labels_of)), folder)
    return folder


def test_a_bundle_is_measured_with_weights_where_asked(
    tiny_bundle_folder: Path, tmp_path: Path, capsys: Said
) -> None:
    figures = tmp_path / "figures.json"
    data = weighted_test(export.tiny_dataset(), tmp_path / "data")
    lf_xmc.write(export.tiny_dataset(), tmp_path / "alike")

    def metrics(folder: Path, *options: str) -> tuple[dict[str, float], str]:
        places = ("--bundle", tiny_bundle_folder, "--data", folder, "--memorization", "0.5", "0")
        assert status_of(app, "score", *places, "--json", figures, *options) == 0
        document = orjson.loads(figures.read_bytes())
        assert (document["bundle"], document["exact"]) == ("tiny", False)
        assert [row["memorization"] for row in document["rows"]] == [0.5, 0]
        assert all(0 <= row["metrics"]["P@1"] <= 100 for row in document["rows"])
        return document["rows"][0]["metrics"], capsys.readouterr().out

    plain, said = metrics(data)
    assert "weighted" not in said and not any("weighted" in name for name in plain)
    found, said = metrics(data, "--weighted")
    assert {name: found[name] for name in plain} == plain
    assert found["weighted R@100"] == pytest.approx(plain["R@100"])  # all positives are found
    assert found["weighted nDCG@5"] != pytest.approx(plain["nDCG@5"])
    assert all(name in said for name in SHOWN_WEIGHTED)
    assert ALL_ALIKE not in said
    alike, said = metrics(tmp_path / "alike", "--weighted")
    assert alike["weighted P@1"] == alike["P@1"]
    assert ALL_ALIKE in said


def test_an_encoder_is_scored_without_a_run_and_with_weights_where_asked(
    model: Path, tmp_path: Path, capsys: Said
) -> None:
    data, out = weighted_test(training.tiny_dataset(), tmp_path / "data"), tmp_path / "out"
    places = ("--encoder", model, "--out", out, "--data", data)
    assert status_of(app, "score", *places, "--weighted") == 0
    assert "weighted P@1 " in capsys.readouterr().out.splitlines()[-1]
    scored = results.read(out)
    first = scored.results[0]
    assert scored.training_seconds is None
    assert first.chosen and first.memorization in MEMORIZATIONS
    assert all(set(SHOWN_WEIGHTED) <= result.metrics.keys() for result in scored.results)
    assert first.metrics["weighted P@1"] <= first.metrics["P@1"]


@pytest.mark.parametrize(("share", "half"), [(1.0, slice(ENCODER)), (0.0, slice(ENCODER, None))])
def test_a_head_by_itself_ranks_by_its_half_of_the_vectors(
    share: float, half: slice, unidec: Path, data: Path, tmp_path: Path
) -> None:
    measured = at_share(unidec, data, tmp_path / "out", share)

    test, keys = tiny_dataset().test, read_label_keys(unidec / "best", labels=16)
    assert keys is not None
    encoder = load_encoder(str(unidec / "best"))
    queries = encoder.encode(test.instances.texts, role=Role.QUERY)
    best = (queries[:, half] @ keys[:, half].T).argmax(axis=1)
    right = np.asarray(test.labels_of.todense())[np.arange(len(best)), best]
    of_labels = next(one.metrics for one in measured.results if one.memorization == 0.0)
    assert of_labels["P@1"] == pytest.approx(100 * right.mean())
    assert measured.name.endswith(f"unidec.toml, head share {share:g}")
    assert measured.settings["head_share"] == share


def test_the_share_that_was_chosen_gives_the_results_of_the_run(
    unidec: Path, data: Path, tmp_path: Path
) -> None:
    before = results.read(unidec)
    again = at_share(unidec, data, tmp_path / "out", share_of(unidec))
    for one, other in zip(before.results, again.results, strict=True):
        assert one.metrics == pytest.approx(other.metrics)
    assert "head_share" not in results.read(unidec).settings, "the run's own results stay"


def test_it_is_said_where_the_classifiers_take_no_part(
    unidec: Path, data: Path, tmp_path: Path, capsys: Said
) -> None:
    run = shutil.copytree(unidec, tmp_path / "run")
    at_share(run, data, tmp_path / "with", 0.0)
    assert NO_CLASSIFIERS not in capsys.readouterr().out
    (run / "best" / LABEL_KEYS).unlink()
    at_share(run, data, tmp_path / "without", 0.0)
    assert NO_CLASSIFIERS in capsys.readouterr().out


ONE_OF_THREE = "give one of --bundle, --run, or --encoder and --out"


def test_noise_is_measured_over_a_bundle(
    tiny_bundle_folder: Path, tmp_path: Path, capsys: Said
) -> None:
    lf_xmc.write(export.tiny_dataset(), tmp_path / "data")
    score = ("score", "--bundle", tiny_bundle_folder, "--data", tmp_path / "data", "--noise")
    measured = {}
    for spelling in ("off", "auto"):
        options = ("--spelling", spelling, "--seed", 3, "--json", tmp_path / spelling)
        assert status_of(app, *score, *options) == 0
        measured[spelling] = orjson.loads((tmp_path / spelling).read_bytes())
    assert "two typos" in capsys.readouterr().out
    off, auto = ({row["kind"]: row for row in one["noise"]} for one in measured.values())
    assert list(off) == [*KINDS, *posted_labels.KINDS]
    assert measured["off"]["seed"] == 3
    for kind, row in off.items():
        assert (row["rows"], row["clean"]) == (auto[kind]["rows"], auto[kind]["clean"])
        assert 0 <= row["noisy"] <= 100
    assert sum(row["noisy"] for row in auto.values()) >= sum(row["noisy"] for row in off.values())


def test_confidences_are_measured_over_a_bundle(
    tiny_bundle_folder: Path, tmp_path: Path, capsys: Said
) -> None:
    lf_xmc.write(export.tiny_dataset(), tmp_path / "data")
    bundle = with_confidence(shutil.copytree(tiny_bundle_folder, tmp_path / "tiny"))
    score = ("score", "--bundle", bundle, "--data", tmp_path / "data", "--json", tmp_path / "json")
    assert status_of(app, *score) == 0
    measured = orjson.loads((tmp_path / "json").read_bytes())["confidence"]
    found, rows = measured["reliability"], len(export.tiny_dataset().test)
    assert found["queries"] == rows
    assert 0 < found["error"] < 100
    assert sum(one["keywords"] for one in found["bins"]) > rows
    assert list(found["answered"]) == ["80", "90", "95"]
    assert 0 <= measured["nonsense_empty"] <= 100
    assert "Confidences" in capsys.readouterr().out


def test_a_filter_leaves_labels_and_the_rows_with_one(tmp_path: Path, capsys: Said) -> None:
    lf_xmc.write(export.tiny_dataset(), tmp_path / "data")
    details = [dump(Details(metadata={"price": place})) for place in range(len(LABELS))]
    bundle = make_bundle(tmp_path / "bundle", label_details=details)  # boots, bottle, lamp, ...
    score = ("score", "--bundle", bundle, "--data", tmp_path / "data")
    cheap = '{"all": [{"field": "price", "lt": 2}]}'
    assert status_of(app, *score, "--filter", cheap, "--json", tmp_path / "json") == 0
    said = "2 of 6 labels pass the filter; 5 test rows without a relevant label among these are"
    assert said in capsys.readouterr().out
    measured = orjson.loads((tmp_path / "json").read_bytes())
    assert measured["filter"] == orjson.loads(cheap)
    assert (measured["labels that pass"], measured["rows left out"]) == (2, 5)
    metrics = measured["rows"][0]["metrics"]
    assert (metrics["rows"], metrics["rows without labels"]) == (3, 0)
    assert metrics["R@10"] == 100  # nothing but the two labels is found
    assert status_of(app, *score, "--filter", '{"none": [{"field": "color", "eq": "red"}]}') == 0
    said = capsys.readouterr().out
    assert "6 of 6 labels pass the filter; 1 test rows without" in said
    assert "note: no label has the field 'color'" in said
    for wanted, message in (
        ('{"all": [{"field": "color", "eq": "red"}]}', "no label has the field 'color'"),
        ("{", "--filter is not JSON"),
        ('{"all": []}', "--filter.all must be a list with at least one condition"),
    ):
        assert status_of(app, *score, "--filter", wanted) == 2
        assert message in capsys.readouterr().err
    assert status_of(app, *score, "--filter", cheap, "--noise") == 2
    assert "--filter and --noise exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", ONE_OF_THREE),
        ("--encoder x", ONE_OF_THREE),
        ("--run {tmp} --out x", ONE_OF_THREE),
        ("--bundle x --run {tmp}", "--bundle and --run exclude each other"),
        ("--bundle x --name y", "--bundle and --name exclude each other"),
        ("--run {tmp} --exact", "--exact goes with --bundle"),
        ("--run {tmp} --filter x", "--filter goes with --bundle"),
        ("--run {tmp}", "run.json: is missing: the run has not finished"),
        ("--bundle {bundle} --memorization 1.1", "0..1"),
        ("--bundle {bundle} --depth 0", "1..2000"),
        ("--bundle {tmp}/nowhere", "{tmp}/nowhere"),
        ("--bundle {bundle} --data {tmp}/nowhere", "{tmp}/nowhere"),
        (
            "--bundle {bundle}",
            "bundle tiny was made from 'outdoor goods'; its labels are not those of 'colours'",
        ),
        ("--run {run} --out {tmp}/x --head-share 1.5", "--head-share must lie in 0..1, not 1.5"),
        ("--run {run} --out {tmp}/x --head-share nan", "--head-share must lie in 0..1, not nan"),
        ("--run {run} --head-share 1", "--head-share goes with --run and --out"),
        ("--run {run} --out {run} --head-share 1", "--out must be another folder than --run"),
        ("--run {run} --out {tmp}/x --head-share 1", "has no two heads"),
        ("--run {run} --out {tmp}/x --items linked", "is for a run of OAK"),
        ("--run {run} --items linked", "goes with --run and --out"),
        ("--run {run} --items linked --head-share 1 --out {tmp}/x", "exclude each other"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: str,
    message: str,
    two_runs: Path,
    tiny_bundle_folder: Path,
    data: Path,
    tmp_path: Path,
    capsys: Said,
) -> None:
    places = {"tmp": tmp_path, "run": two_runs / "rae", "bundle": tiny_bundle_folder}
    given = arguments.format(**places).split()
    given += [] if "--data" in given else ["--data", str(data)]
    assert status_of(app, "score", *given) == 2
    assert message.format(**places) in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "x").exists()
