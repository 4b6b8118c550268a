"""The house's measures: small folders, small files, small functions."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("service", "training", "export", "loadtests", "tests")
MODULES_A_FOLDER = 15
LINES_A_FILE = 300
LINES_A_FUNCTION = 60
CODE_LINES_A_FUNCTION = 40  # without its docstring, which is a command's help text
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))

Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_no_folder_holds_more_than_15_modules() -> None:
    counts: dict[str, int] = {}
    for path in SOURCES:
        if path.name not in ("__init__.py", "conftest.py"):
            folder = name(path.parent)
            counts[folder] = counts.get(folder, 0) + 1
    assert {f: count for f, count in counts.items() if count > MODULES_A_FOLDER} == {}


def test_files_are_short() -> None:
    counts = {name(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {file: count for file, count in counts.items() if count > LINES_A_FILE} == {}


def test_functions_are_short() -> None:
    too_long = [
        f"{name(path)}: {function.name}: {total} lines, {code} of code"
        for path in SOURCES
        for function, total, code in measured(path.read_text())
        if total > LINES_A_FUNCTION or code > CODE_LINES_A_FUNCTION
    ]
    assert too_long == []


def name(path: Path) -> str:
    """The path as it stands in the repository."""
    return str(path.relative_to(ROOT))


def measured(source: str) -> Iterator[tuple[Function, int, int]]:
    """Each function with its lines, and those without its docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            total = lines(node)
            first = node.body[0]
            documented = ast.get_docstring(node) is not None
            yield node, total, total - (lines(first) if documented else 0)


def lines(node: ast.stmt) -> int:
    """How many lines a statement takes; decorators are counted to what they decorate."""
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1
