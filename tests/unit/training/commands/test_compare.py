"""Comparisons: what they read, and that each entry ends as results of its own."""

from pathlib import Path

import pytest

from service.command_line import run
from service.core.errors import InvalidConfig
from tests.support.tiny.training import RECIPE
from training.__main__ import app
from training.comparisons import comparison as comparisons
from training.evaluation import results
from training.recipes import recipe as recipes

COMPARISON = """
set = ["optimizer.steps=2"]

[[entries]]
name = "minilm"
encoder = "{model}"

[[entries]]
name = "bm25"
peer = "bm25"

[[entries]]
name = "rae"
recipe = "{recipe}"

[[entries]]
name = "rae-no-instances"
recipe = "{recipe}"
set = ["system.in_batch_instances=false"]
"""


RAE = '[[entries]]\nname = "r"\nrecipe = "rae"\n'
DE = '[[entries]]\nname = "de"\nscores = "r"\nhead_share = 1.0\n'


@pytest.fixture
def comparison(model: Path, tmp_path: Path) -> Path:
    recipe, comparison = tmp_path / "mine.toml", tmp_path / "compared.toml"
    recipe.write_text(RECIPE.format(model=model, system="rae"))
    comparison.write_text(COMPARISON.format(model=model, recipe=recipe))
    return comparison


@pytest.mark.slow
def test_each_entry_is_trained_and_scored_once(
    comparison: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    command = ["compare", str(comparison), "--data", str(data), "--out", str(out)]

    assert run(app, [*command, "--only", "rae", "rae-no-instances", "minilm"]) == 0

    names = ("minilm", "rae", "rae-no-instances")
    found = {name: results.read(out / name) for name in names}
    assert [one.name for one in found.values()] == list(names)
    for name, with_instances in (("rae", True), ("rae-no-instances", False)):
        settings = found[name].settings
        assert settings["optimizer"]["steps"] == 2
        assert settings["system"].get("in_batch_instances", True) is with_instances
    assert not (out / "bm25").exists()

    capfd.readouterr()
    assert run(app, [*command, "--dry-run"]) == 0
    shown = capfd.readouterr().out.splitlines()
    assert shown == [f"python -m training peer bm25 --data {data} --out {out / 'bm25'}"]


def test_fit_is_an_entry_too(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    comparison, out = tmp_path / "compared.toml", tmp_path / "runs"
    comparison.write_text('[[entries]]\nname = "ours"\nfit = 2.5\n')
    places = ["--data", str(data), "--out", str(out)]
    assert run(app, ["compare", str(comparison), *places, "--dry-run"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        f"python -m training fit --data {data} --out {out / 'ours'} --minutes 2.5",
        f"python -m training score --run {out / 'ours'} --data {data} --name ours --precision fp32",
    ]


def test_an_entry_is_guided_by_one_before_it(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    comparison, out = tmp_path / "compared.toml", tmp_path / "runs"
    entries = '[[entries]]\nname = "first"\nrecipe = "rae"\n[[entries]]\nname = "second"\n'
    comparison.write_text(f'{entries}recipe = "ngame"\nguided_by = "first"\n')
    command = ["compare", str(comparison), "--data", str(data), "--out", str(out), "--dry-run"]
    assert run(app, [*command, "--only", "second"]) == 0
    training = capfd.readouterr().out.splitlines()[0]
    assert training.endswith(f"--set guidance.oracle={out / 'first'}")


def test_an_entry_trains_on_the_encoder_of_one_before_it(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    comparison, out = tmp_path / "compared.toml", tmp_path / "runs"
    entries = '[[entries]]\nname = "first"\nrecipe = "rae"\n[[entries]]\nname = "second"\n'
    comparison.write_text(f'{entries}recipe = "unidec-heads"\nencoder_of = "first"\n')
    command = ["compare", str(comparison), "--data", str(data), "--out", str(out), "--dry-run"]
    assert run(app, [*command, "--only", "second", "--seeds", "0", "1"]) == 0
    first, _, again, _ = capfd.readouterr().out.splitlines()
    assert first.endswith(f"--encoder {out / 'first' / 'best'}")
    assert f"--encoder {out / 'first' / 'seed-1' / 'best'}" in again

    comparison.write_text(f'{entries}recipe = "unidec-heads"\nencoder_of = "third"\n')
    with pytest.raises(InvalidConfig, match="encoder_of names an entry before it"):
        comparisons.load(str(comparison))
    comparison.write_text(f'{entries}encoder = "m"\nencoder_of = "first"\n')
    with pytest.raises(InvalidConfig, match="`encoder_of` does not apply to an encoder"):
        comparisons.load(str(comparison))


def test_a_comparison_goes_on_from_another(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "first.toml").write_text(
        'set = ["optimizer.steps=2"]\n[[entries]]\nname = "oracle"\nrecipe = "rae"\n'
    )
    later, out = tmp_path / "later.toml", tmp_path / "runs"
    later.write_text(
        'extends = "first.toml"\nset = ["seed=1"]\n'
        '[[entries]]\nname = "guided"\nrecipe = "ngame"\nguided_by = "oracle"\n'
    )
    places = ["--data", str(data), "--out", str(out), "--dry-run"]
    assert run(app, ["compare", str(later), *places]) == 0
    oracle, _, guided, _ = capfd.readouterr().out.splitlines()
    settings = "--set optimizer.steps=2 --set seed=1"
    assert oracle.endswith(f"{out / 'oracle'} {settings}")
    assert guided.endswith(f"{settings} --set guidance.oracle={out / 'oracle'}")

    later.write_text('extends = "later.toml"\n')
    with pytest.raises(InvalidConfig, match="extends itself"):
        comparisons.load(str(later))


def test_entries_mix_rerank_and_score_those_before_them(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    comparison, out = tmp_path / "compared.toml", tmp_path / "runs"
    other = RAE.replace('"r"', '"s"')
    again = '[[entries]]\nname = "again"\nreranks = "r"\n'
    comparison.write_text(f'{RAE}{other}[[entries]]\nname = "m"\nmixes = ["r", "s"]\n{again}{DE}')
    command = ["compare", str(comparison), "--data", str(data), "--out", str(out), "--dry-run"]
    assert run(app, [*command, "--only", "m", "again", "de"]) == 0
    end = "--precision fp32"
    assert capfd.readouterr().out.splitlines() == [
        f"python -m training mix --run {out / 'r'} {out / 's'} --data {data} --out {out / 'm'}"
        f" --name m {end}",
        f"python -m training rerank --run {out / 'r'} --data {data} --out {out / 'again'}"
        f" --name again {end}",
        f"python -m training score --run {out / 'r'} --data {data} --out {out / 'de'}"
        f" --head-share 1 --name de {end}",
    ]


def test_each_recipe_is_trained_with_every_seed(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    comparison, out = tmp_path / "compared.toml", tmp_path / "runs"
    guided = '[[entries]]\nname = "g"\nrecipe = "ngame"\nguided_by = "r"\n'
    peer = '[[entries]]\nname = "bm25"\npeer = "bm25"\n'
    fit = '[[entries]]\nname = "f"\nfit = 1.0\n[[entries]]\nname = "m"\nmixes = ["r", "f"]\n'
    comparison.write_text(f"{RAE}{guided}{DE}{peer}{fit}")
    places = ["--data", str(data), "--out", str(out), "--dry-run"]
    assert run(app, ["compare", str(comparison), *places, "--seeds", "2"]) == 0
    lines = capfd.readouterr().out.splitlines()
    shown = [line.removeprefix("python -m training ") for line in lines]
    first, second = out / "r" / "seed-2", out / "g" / "seed-2"
    scoring = "--precision fp32"
    assert shown == [
        f"train rae --data {data} --out {first} --set seed=2",
        f"score --run {first} --data {data} --name r {scoring}",
        f"train ngame --data {data} --out {second} --set seed=2 --set guidance.oracle={first}",
        f"score --run {second} --data {data} --name g {scoring}",
        f"score --run {first} --data {data} --out {out / 'de' / 'seed-2'} --head-share 1 --name de"
        f" {scoring}",
        f"mix --run {first} {out / 'f'} --data {data} --out {out / 'm' / 'seed-2'} --name m"
        f" {scoring}",
    ]


@pytest.mark.parametrize("seeds", [["-1"], ["1", "1"]])
def test_wrong_seeds_are_refused(
    seeds: list[str], data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    places = ["--data", str(data), "--out", str(tmp_path / "runs"), "--dry-run"]
    assert run(app, ["compare", "moby", *places, "--seeds", *seeds]) == 2
    assert "--seeds takes different numbers from 0 on" in capfd.readouterr().err


def test_a_command_that_fails_stops_the_comparison(
    comparison: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    comparison.write_text(comparison.read_text().replace("steps=2", "steps=none"))
    command = ["compare", str(comparison), "--data", str(data), "--out", str(tmp_path / "runs")]

    assert run(app, [*command, "--only", "rae"]) == 2

    said = capfd.readouterr().err
    assert "optimizer.steps" in said
    assert f"error: train {tmp_path / 'mine.toml'} ended with status 2" in said


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "entries"),
        (
            '[[entries]]\nname = "a"\n',
            "a needs exactly one of recipe, encoder, peer, fit, mixes, reranks, scores",
        ),
        ('[[entries]]\nname = "a"\npeer = "b"\nrecipe = "c"\n', "a needs exactly one of"),
        ('[[entries]]\nname = "../a"\npeer = "bm25"\n', "entries.0.name"),
        (
            '[[entries]]\nname = "a"\nencoder = "b"\nset = ["x=1"]\n',
            "`set` does not apply to an encoder",
        ),
        ('[[entries]]\nname = "a"\nfit = 1.0\nset = ["x=1"]\n', "`set` does not apply to fit"),
        ('[[entries]]\nname = "a"\nfit = 0.0\n', "entries.0.fit"),
        (2 * '[[entries]]\nname = "a"\npeer = "bm25"\n', "two entries are named a"),
        ('[[entries]]\nname = "a"\nweight = 1\n', "weight is unknown; known are name, recipe"),
        ('extends = 1\n[[entries]]\nname = "a"\npeer = "bm25"\n', "extends must be the name"),
        ('extends = "none"\n', "no comparison is named 'none'"),
        ('extends = "moby"\nentries = 1\n', "entries"),
        (
            'extends = "moby"\n[[entries]]\nname = "rae"\nrecipe = "rae"\n',
            "two entries are named rae",
        ),
        (
            '[[entries]]\nname = "a"\nrecipe = "rae"\nguided_by = "b"\n',
            "guided_by names an entry before it that has a recipe; b is none",
        ),
        ('[[entries]]\nname = "a"\npeer = "bm25"\nguided_by = "b"\n', "does not apply to peer"),
        (
            '[[entries]]\nname = "a"\nmixes = ["b", "c"]\n',
            "mixes names an entry before it that has a recipe; b is none",
        ),
        ('[[entries]]\nname = "a"\nmixes = ["b"]\n', "entries.0.mixes"),
        (RAE + '[[entries]]\nname = "a"\nmixes = ["r", "r"]\n', "mixes names an entry twice"),
        (
            RAE + '[[entries]]\nname = "a"\nmixes = ["r", "r"]\nset = ["x=1"]\n',
            "`set` does not apply to mixes",
        ),
        (RAE + '[[entries]]\nname = "a"\nscores = "r"\n', "scores and head_share go together"),
        (RAE + "head_share = 0.5\n", "scores and head_share go together"),
        (
            RAE + '[[entries]]\nname = "a"\nscores = "r"\nhead_share = 1.5\n',
            "entries.1.head_share",
        ),
    ],
)
def test_a_wrong_comparison_is_named(document: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(document)
    with pytest.raises(InvalidConfig, match=message):
        comparisons.load(str(path))


def test_unknown_names_are_told_what_there_is(comparison: Path) -> None:
    with pytest.raises(InvalidConfig, match="known are minilm, bm25, rae, rae-no-instances"):
        comparisons.load(str(comparison)).chosen(("dpr",))
    with pytest.raises(
        InvalidConfig, match="one of debian-seealso, moby, mogic-ablations-debian-seealso"
    ):
        comparisons.load("wikipedia")


@pytest.mark.parametrize("name", comparisons.names())
def test_ours_name_recipes_that_are(name: str) -> None:
    ours = comparisons.load(name)
    for entry in ours.entries:
        if entry.recipe is not None:
            oracle = () if entry.guided_by is None else (f"guidance.oracle={entry.guided_by}",)
            recipes.load(entry.recipe, (*ours.set, *entry.set, *oracle))
