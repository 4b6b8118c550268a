"""Links, commands, settings, alerts and make targets in the documentation exist."""

import dataclasses
import io
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from cyclopts import App

from service.command_line import run
from service.core.options import OPTIONS
from service.http.bodies import limited
from service.http.predictions import PredictRequest
from service.keymatch import keymatch
from service.settings import EngineSettings, Limits, ServerSettings
from tests.support.commands import every_command
from training.lab.comparisons import comparison
from training.lab.peers import PEERS
from training.recipes import recipe

ROOT = Path(__file__).parents[2]
FOLDERS = ("service", "training", "export", "deploy", "loadtests", "tests")
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.md"))]
)
# Describes removed features with their old commands, so its commands are not checked.
HISTORY = ROOT / "training/lab/measured/not-adopted.md"
CURRENT = [path for path in DOCUMENTS if path != HISTORY]
README_LINES = 200
PACKAGES = {
    "keymatch": "README.md",
    "service": "service/README.md",
    "training": "training/README.md",
    "export": "training/README.md",
}
LOAD_TESTS = sorted(
    f"loadtests.{path.stem}"
    for path in (ROOT / "loadtests").glob("*.py")
    if re.search(r"^app = App\(|^    \w+\.command\(\)", path.read_text(), re.MULTILINE)
)
COMPUTED = {"workers": "cores", "threads": "cores / workers"}  # defaults computed at the start
NAMED = {  # second word of a command -> names that may follow
    "train": recipe.names,
    "compare": comparison.names,
    "peer": lambda: list(PEERS),
}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# Links and paths ------------------------------------------------------------------------------


def without_code(text: str) -> str:
    """Markdown without code blocks and code spans."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    return re.sub(r"`[^`]*`", "", "\n".join(lines))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_relative_link_and_anchor_exists(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(document.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = document.parent / path if path else document
        assert linked.exists(), f"{name_of(document)} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(linked.read_text()), f"{name_of(document)}: {target}"


@pytest.mark.parametrize("document", CURRENT, ids=name_of)
def test_every_named_source_file_and_module_exists(document: Path) -> None:
    text = document.read_text()
    for path in re.findall(r"`([\w/.-]+/[\w.-]+\.(?:py|toml|yml|sh))`", text):
        assert (document.parent / path).is_file() or (ROOT / path).is_file(), path
    for module in re.findall(r"`((?:service|training|export|loadtests)(?:\.[a-z_]+)+)`", text):
        assert find_spec(module) is not None, module


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_no_document_names_a_path_of_somebodys_machine(document: Path) -> None:
    absolute = re.compile(r"(?<![\w.:/-])/(?:home|root|Users|work|tmp|opt|mnt|srv)/\S*")
    assert absolute.findall(document.read_text()) == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


# Commands -------------------------------------------------------------------------------------


@cache
def application(module: str) -> App:
    """The command line of `keymatch` or of `python -m MODULE`."""
    if module == "keymatch":
        return keymatch()
    spec = find_spec(module)
    assert spec is not None, module
    package = spec.submodule_search_locations is not None
    found = import_module(f"{module}.__main__" if package else module)
    scenario = getattr(found, module.rpartition(".")[2].capitalize(), None)  # of a load test
    app = scenario.app() if scenario else found.app
    assert isinstance(app, App)
    return app


def help_text(app: App, *command: str) -> str:
    """Return what `--help` prints for a command."""
    shown = io.StringIO()
    with redirect_stdout(shown), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "500")
        assert run(app, [*command, "--help"]) == 0, command
    return shown.getvalue()


def documented_commands() -> Iterator[tuple[str, str]]:
    """Yield the document's name and the words of each `keymatch ...` and `python -m ...`."""
    for path in CURRENT:
        text = path.read_text().replace("\\\n", " ")
        for code in re.findall(r"^ {4}.*$|`[^`]*`", text, flags=re.MULTILINE):
            for words in re.findall(r"python -m ([^`#]+)|^`?(?: {4})?(keymatch [a-z][^`#]+)", code):
                yield name_of(path), re.sub(r"\s+", " ", "".join(words)).strip()


DOCUMENTED = sorted(set(documented_commands()))


@pytest.mark.parametrize("module", [*PACKAGES, *LOAD_TESTS])
def test_every_command_explains_itself(module: str) -> None:
    app = application(module)
    for command, _ in every_command(app):
        assert help_text(app, *command).startswith("Usage:")


def test_documented_commands_were_collected() -> None:
    assert len(DOCUMENTED) > 20
    assert len(LOAD_TESTS) >= 7


@pytest.mark.parametrize(("document", "line"), DOCUMENTED, ids=lambda value: value[:60])
def test_every_documented_command_and_option_exists(document: str, line: str) -> None:
    module, *words = line.removesuffix(" --help").split(" ")
    if module == "...":
        return
    assert module in PACKAGES or module in LOAD_TESTS, f"{document}: {line}"
    app = application(module)
    command, _, rest = app.parse_commands(words)
    if module in PACKAGES and words and words != ["..."]:
        assert command, f"{document}: {line} is no command"
    options = {word for word in words if word.startswith("--")}
    described = set(re.findall(r"--[a-z-]+", help_text(app, *command)))
    assert options <= described, f"{document}: {line}"
    if command and command[-1] in NAMED and rest and re.match(r"[a-z]", rest[0]):
        assert set(rest[0].split("|")) <= set(NAMED[command[-1]]()), f"{document}: {line}"


@pytest.mark.parametrize(("module", "readme"), PACKAGES.items())
def test_the_help_of_each_package_points_to_its_readme(module: str, readme: str) -> None:
    assert readme in help_text(application(module))


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    assert targets == set(phony[1].split())
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = set(re.findall(r"^  make ([a-z-]+) +\S", shown.stdout, re.MULTILINE))
    assert listed == targets


# Settings and alerts --------------------------------------------------------------------------


@pytest.mark.parametrize("table", [Limits, EngineSettings, ServerSettings])
def test_every_setting_is_documented_with_its_default(table: type) -> None:
    rows = dict(
        re.findall(r"^\| `(\w+)` \| (.*?) \|", (ROOT / "service/README.md").read_text(), re.M)
    )
    for setting in dataclasses.fields(table):
        assert setting.name in rows, f"service/README.md lacks the setting {setting.name}"
        if setting.name in COMPUTED:
            assert rows[setting.name] == COMPUTED[setting.name]
            continue
        if setting.default in (dataclasses.MISSING, None):
            continue
        assert rows[setting.name] == shown(setting.default)


def shown(default: object) -> str:
    """The default of a setting as the README shows it."""
    match default:
        case bool():
            return str(default).lower()
        case int():
            return f"{default:,}"
        case str():
            return f"`{default}`"
    return str(default)


def test_the_table_of_options_is_made_from_their_declarations() -> None:
    table = "\n".join(option_rows())
    assert table in (ROOT / "service/README.md").read_text(), f"put this into the README:\n{table}"


def option_rows() -> Iterator[str]:
    """The table of the options of a query, as it is in service/README.md."""
    yield "| option | command | type | default | what it does |"
    yield "|---|---|---|---|---|"
    schemas = limited(PredictRequest, Limits()).model_json_schema()["properties"]
    for option in OPTIONS:
        schema = schemas[option.name]
        [kind] = [one for one in schema.get("anyOf", [schema]) if one["type"] != "null"]
        allowed = ", ".join(kind.get("items", kind).get("enum", [kind["type"]]))
        if "minimum" in kind:
            allowed += f", {kind['minimum']:,} to {kind['maximum']:,}"
        most = f", at most {kind['maxItems']}" if "maxItems" in kind else ""
        own = "the bundle's" if option.of_bundle else "none"
        default = own if option.default is None else json.dumps(option.default)
        flag = "" if option.command is None else f"`--{option.name.replace('_', '-')}`"
        cells = (f"`{option.name}`", flag, allowed + most, default, schema["description"])
        yield f"| {' | '.join(cells)} |"


def test_the_runbook_explains_every_alert() -> None:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    runbook = (ROOT / "deploy/README.md").read_text()
    assert set(re.findall(r"^\| (Keymatch\w+) \|", runbook, re.MULTILINE)) == alerts
