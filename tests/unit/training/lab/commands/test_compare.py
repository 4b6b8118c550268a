"""Comparisons: how their files are read, and that each entry gets its own results."""

from collections.abc import Callable
from pathlib import Path

import pytest

from service.command_line import run
from service.core.errors import InvalidConfig
from tests.support.tiny.training import RECIPE
from training.__main__ import app
from training.evaluation import results
from training.lab.comparisons import comparison as comparisons
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


FIRST = '[[entries]]\nname = "r"\nrecipe = "rae"\n'
DE = '[[entries]]\nname = "de"\nscores = "r"\nhead_share = 1.0\n'
Shown = Callable[..., list[str]]


@pytest.fixture
def shown(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Shown:
    """`shown(comparison, "--only", "r")` returns the commands, with folders as DATA and RUNS."""

    def commands(comparison: str, *options: str) -> list[str]:
        (tmp_path / "compared.toml").write_text(comparison)
        places = ["--data", str(data), "--out", str(tmp_path / "runs"), "--dry-run"]
        assert run(app, ["compare", str(tmp_path / "compared.toml"), *places, *options]) == 0
        lines = capfd.readouterr().out.splitlines()
        known = {f"{tmp_path / 'runs'}": "RUNS", f"{data}": "DATA", " --precision fp32": ""}
        for text, name in known.items():
            lines = [line.replace(text, name) for line in lines]
        return [line.removeprefix("keymatch ") for line in lines]

    return commands


def entry(name: str, **keys: str) -> str:
    lines = [f'{key} = "{value}"\n' for key, value in {"name": name, **keys}.items()]
    return f"[[entries]]\n{''.join(lines)}"


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
    assert shown == [f"keymatch lab peer bm25 --data {data} --out {out / 'bm25'}"]


@pytest.mark.parametrize(
    ("comparison", "options", "expected"),
    [
        (
            '[[entries]]\nname = "ours"\nfit = 2.5\n',
            (),
            [
                "fit --data DATA --out RUNS/ours --minutes 2.5",
                "score --run RUNS/ours --data DATA --name ours",
            ],
        ),
        (
            FIRST + entry("h", recipe="unidec-heads", encoder_of="r"),
            ("--only", "h", "--seed", "0", "1"),
            [
                "lab train unidec-heads --data DATA --out RUNS/h --encoder RUNS/r/best",
                "score --run RUNS/h --data DATA --name h",
                "lab train unidec-heads --data DATA --out RUNS/h/seed-1"
                " --encoder RUNS/r/seed-1/best --set seed=1",
                "score --run RUNS/h/seed-1 --data DATA --name h",
            ],
        ),
        (
            FIRST + entry("again", reranks="r") + DE,
            ("--only", "again", "de"),
            [
                "lab rerank --run RUNS/r --data DATA --out RUNS/again --name again",
                "score --run RUNS/r --data DATA --out RUNS/de --head-share 1 --name de",
            ],
        ),
        (
            FIRST
            + entry("g", recipe="ngame", guided_by="r")
            + DE
            + entry("bm25", peer="bm25")
            + '[[entries]]\nname = "f"\nfit = 1.0\n'
            + entry("m", reranks="f"),
            ("--seed", "2"),
            [
                "lab train rae --data DATA --out RUNS/r/seed-2 --set seed=2",
                "score --run RUNS/r/seed-2 --data DATA --name r",
                "lab train ngame --data DATA --out RUNS/g/seed-2 --set seed=2"
                " --set guidance.oracle=RUNS/r/seed-2",
                "score --run RUNS/g/seed-2 --data DATA --name g",
                "score --run RUNS/r/seed-2 --data DATA --out RUNS/de/seed-2 --head-share 1"
                " --name de",
                "lab rerank --run RUNS/f --data DATA --out RUNS/m/seed-2 --name m",
            ],
        ),
    ],
    ids=["fit", "encoder of", "rerank and score", "seeds"],
)
def test_each_kind_of_entry_has_its_commands(
    comparison: str, options: tuple[str, ...], expected: list[str], shown: Shown
) -> None:
    assert shown(comparison, *options) == expected


def test_a_comparison_goes_on_from_another(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_text(f'set = ["optimizer.steps=2"]\n{FIRST}')
    guided = entry("guided", recipe="ngame", guided_by="r")
    oracle, _, last, _ = shown(f'extends = "first.toml"\nset = ["seed=1"]\n{guided}')
    settings = "--set optimizer.steps=2 --set seed=1"
    assert oracle.endswith(f"RUNS/r {settings}")
    assert last.endswith(f"{settings} --set guidance.oracle=RUNS/r")

    (tmp_path / "compared.toml").write_text('extends = "compared.toml"\n')
    with pytest.raises(InvalidConfig, match="extends itself"):
        comparisons.load(str(tmp_path / "compared.toml"))


@pytest.mark.parametrize("seeds", [["-1"], ["1", "1"]])
def test_wrong_seeds_are_refused(
    seeds: list[str], data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    places = ["--data", str(data), "--out", str(tmp_path / "runs"), "--dry-run"]
    assert run(app, ["compare", "moby", *places, "--seed", *seeds]) == 2
    assert "--seed takes different numbers from 0 on" in capfd.readouterr().err


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
        (entry("a"), "a needs exactly one of recipe, encoder, peer, fit, reranks, scores"),
        (entry("a", peer="b", recipe="c"), "a needs exactly one of"),
        (entry("../a", peer="bm25"), "entries.0.name"),
        (f'{entry("a", encoder="b")}set = ["x=1"]\n', "`set` does not apply to an encoder"),
        ('[[entries]]\nname = "a"\nfit = 1.0\nset = ["x=1"]\n', "`set` does not apply to fit"),
        ('[[entries]]\nname = "a"\nfit = 0.0\n', "entries.0.fit"),
        (2 * entry("a", peer="bm25"), "two entries are named a"),
        ('[[entries]]\nname = "a"\nweight = 1\n', "weight is unknown; known are name, recipe"),
        ('extends = 1\n[[entries]]\nname = "a"\npeer = "bm25"\n', "extends must be the name"),
        ('extends = "none"\n', "no comparison is named 'none'"),
        ('extends = "moby"\nentries = 1\n', "entries"),
        (f'extends = "moby"\n{entry("rae", recipe="rae")}', "two entries are named rae"),
        (
            entry("a", recipe="rae", guided_by="b"),
            "guided_by names an entry before it that has a recipe; b is none",
        ),
        (entry("a", recipe="rae", encoder_of="b"), "encoder_of names an entry before it"),
        (entry("a", encoder="m", encoder_of="b"), "`encoder_of` does not apply to an encoder"),
        (entry("a", peer="bm25", guided_by="b"), "does not apply to peer"),
        (
            entry("a", reranks="b"),
            "reranks names an entry before it that has a recipe; b is none",
        ),
        (
            f'{FIRST}{entry("a", reranks="r")}set = ["x=1"]\n',
            "`set` does not apply to reranks",
        ),
        (FIRST + entry("a", scores="r"), "scores and head_share go together"),
        (f"{FIRST}head_share = 0.5\n", "scores and head_share go together"),
        (f"{FIRST}{entry('a', scores='r')}head_share = 1.5\n", "entries.1.head_share"),
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
