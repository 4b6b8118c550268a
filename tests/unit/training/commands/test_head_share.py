"""`score --head-share` measures one of UniDEC's heads, or another mixture of the two."""

from pathlib import Path

import numpy as np
import pytest

from service.command_line import run
from service.core.types import Role
from tests.support.tiny.training import RECIPE, tiny_dataset
from training.__main__ import app
from training.checkpoints.label_keys import LABEL_KEYS, read_label_keys
from training.commands import score as command
from training.evaluation import results
from training.models.torch_encoder import load_encoder
from training.models.two_heads import heads_of, with_share

HEADS = "[heads]\nencoder = 16\nclassifier = 12\n"
ENCODER = 16  # dimensions of the encoder head D


@pytest.fixture(scope="module")
def trained(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A UniDEC run with made-up label keys, scored at its chosen share."""
    folder = tmp_path_factory.mktemp("unidec")
    recipe = folder / "unidec.toml"
    recipe.write_text(
        RECIPE.format(model=model, system="unidec").replace("[batch]", HEADS + "[batch]")
    )
    arguments = ["--data", str(data), "--out", str(folder / "run")]
    assert run(app, ["train", str(recipe), *arguments]) == 0
    best = folder / "run/best"
    heads = heads_of(load_encoder(str(best)).model)
    assert heads is not None
    drawn = np.random.default_rng(0).standard_normal((16, 28)).astype(np.float32)
    np.save(best / LABEL_KEYS, with_share(drawn, float(heads.share), encoder=ENCODER))
    assert run(app, ["score", "--run", str(folder / "run"), "--data", str(data)]) == 0
    return folder / "run"


def scored(trained: Path, data: Path, out: Path, share: float) -> results.Results:
    options = ["--run", str(trained), "--data", str(data), "--out", str(out)]
    assert run(app, ["score", *options, "--head-share", str(share)]) == 0
    return results.read(out)


def labels_only(measured: results.Results) -> float:
    return next(one.metrics["P@1"] for one in measured.results if one.memorization == 0.0)


@pytest.mark.parametrize(("share", "half"), [(1.0, slice(ENCODER)), (0.0, slice(ENCODER, None))])
def test_a_head_by_itself_ranks_by_its_half_of_the_vectors(
    share: float, half: slice, trained: Path, data: Path, tmp_path: Path
) -> None:
    measured = scored(trained, data, tmp_path / "out", share)

    test, keys = tiny_dataset().test, read_label_keys(trained / "best", labels=16)
    assert keys is not None
    encoder = load_encoder(str(trained / "best"))
    queries = encoder.encode(test.instances.texts, role=Role.QUERY)
    best = (queries[:, half] @ keys[:, half].T).argmax(axis=1)
    right = np.asarray(test.labels_of.todense())[np.arange(len(best)), best]
    assert labels_only(measured) == pytest.approx(100 * right.mean())
    assert measured.name.endswith(f"unidec.toml, head share {share:g}")
    assert measured.settings["head_share"] == share


def test_the_share_that_was_chosen_gives_the_results_of_the_run(
    trained: Path, data: Path, tmp_path: Path
) -> None:
    heads = heads_of(load_encoder(str(trained / "best")).model)
    assert heads is not None
    before = results.read(trained)

    again = scored(trained, data, tmp_path / "out", float(heads.share))

    for one, other in zip(before.results, again.results, strict=True):
        assert one.metrics == pytest.approx(other.metrics)
    assert "head_share" not in results.read(trained).settings, "the run's own results stay"


def test_it_is_said_where_the_classifiers_take_no_part(
    trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scored(trained, data, tmp_path / "with", 0.0)
    assert command.NO_CLASSIFIERS not in capsys.readouterr().out
    kept = trained / "best" / LABEL_KEYS
    content = kept.read_bytes()
    kept.unlink()
    try:
        scored(trained, data, tmp_path / "without", 0.0)
    finally:
        kept.write_bytes(content)
    assert command.NO_CLASSIFIERS in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "{tmp}/x", "--head-share", "1.5"], "--head-share must lie in 0..1, not 1.5"),
        (["--out", "{tmp}/x", "--head-share", "nan"], "--head-share must lie in 0..1, not nan"),
        (["--head-share", "1"], "--head-share goes with --run and --out"),
        (["--out", "{run}", "--head-share", "1"], "--out must be another folder than --run"),
    ],
)
def test_wrong_arguments_are_one_line(
    options: list[str],
    message: str,
    trained: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [text.format(tmp=tmp_path, run=trained) for text in options]
    assert run(app, ["score", "--data", str(data), "--run", str(trained), *given]) == 2
    assert message in capsys.readouterr().err


def test_an_encoder_without_heads_is_refused(
    two_runs: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--run", str(two_runs / "rae"), "--data", str(data), "--out", str(tmp_path / "one")]
    assert run(app, ["score", *places, "--head-share", "1"]) == 2
    assert "has no two heads" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "one").exists()
