"""The README's sample of a log becomes a bundle by the README's own commands, and is scored."""

import json
import re
import shlex
from pathlib import Path

import pytest

from service.keymatch import keymatch
from tests.support.commands import status_of

ROOT = Path(__file__).parents[3]
SECTION = "## Your log in two minutes"


def test_the_sample_of_the_readme_becomes_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "README.md").read_text().split(SECTION)[1]
    [sample] = re.findall(r"(?m)^    query,keyword\n(?:    .+\n)+", text)
    monkeypatch.chdir(tmp_path)
    Path("clicks.csv").write_text(sample.replace("    ", ""))
    Path("deploy").symlink_to(ROOT / "deploy")
    commands = re.findall(r"(?m)^    keymatch (data pairs|export bundle) (.+)$", text)[:2]
    for command, options in commands:
        assert status_of(keymatch(), *command.split(), *shlex.split(options)) == 0, command
    assert "P@1" in capsys.readouterr().out
    [query] = re.findall(r'"queries": \["(.+)"\]', text)
    Path("queries.txt").write_text(f"{query}\n")
    options = ("--bundle", "bundles/shop", "--input", "queries.txt", "--out", "found.jsonl")
    assert status_of(keymatch(), "predict", *options, "--top-k", "1") == 0
    [found] = json.loads(Path("found.jsonl").read_text())["keywords"]
    [shown] = re.findall(r'"keywords":\[\s*(\{.+?\})\]', text)
    assert found == json.loads(shown) | {
        "score": pytest.approx(json.loads(shown)["score"], abs=0.01)
    }
