"""`keymatch predict` answers a whole file like a server, even if it is interrupted once.

On a long file it reports its progress, and its memory does not grow.
"""

import csv
import re
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyarrow import parquet

from service.__main__ import app
from service.bulk import progress
from service.bulk.run import rows_of_part
from tests.support.commands import Refused, run, status_of
from tests.support.serving import ServerProcess, local_service
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.items import ITEMS
from tests.support.waiting import wait_for

WORDS = ("boots", "tent", "warm", "trail", "lamp", "gas", "ice", "axe", "for", "two", "water")
QUERIES = [f"{first} {second}" for first in WORDS for second in WORDS] + ["boots boots", "axe"]
SMALL_PARTS = {"top_k": 1000}  # with --explain, a part then has six rows

ATTENDING = [  # queries, and the items that each attends to
    ("tent", ["camp"]),
    ("tent", None),
    ("tent", []),
    ("warm boots", ["feet", "a good axe"]),
    ("tent", ["water", "axe"]),
]

Command = Callable[..., list[object]]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "queries.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("n", "query"), *enumerate(QUERIES)])
    return path


@pytest.fixture
def predict(tiny_bundle_folder: Path, table: Path, tmp_path: Path) -> Command:
    """`predict(out=FILE, query=COLUMN, ...)` is the command with these options changed or added."""
    places = {"bundle": tiny_bundle_folder, "input": table, "out": tmp_path / "out.jsonl"}

    def command(*flags: str, **options: object) -> list[object]:
        named = {**places, "query": "query", **options}
        pairs = ((f"--{name.replace('_', '-')}", value) for name, value in named.items())
        return ["predict", *chain.from_iterable(pairs), *flags]

    return command


def lines_of(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_answers_are_those_of_a_server_on_the_same_state(
    start: Callable[..., ServerProcess], predict: Command, tmp_path: Path
) -> None:
    config = tmp_path / "keymatch.toml"
    config.write_text("[engine]\nseal_rows = 8\n")
    server = start("--config", config)
    labels = [
        {"id": f"l{n}", "text": f"ice axe {n}", "queries": [f"axe {n}"], "metadata": {"n": n}}
        for n in range(20)
    ]
    server.client.post("/labels", json={"labels": labels}).raise_for_status()
    click = {"query": "two for tea", "labels": ["tent"]}
    server.client.post("/instances", json={"instances": [click]}).raise_for_status()
    server.client.delete("/labels/lamp").raise_for_status()
    wait_for(lambda: server.logged("sealed"))
    asked = {"top_k": 7, "memorization": 0.3, "depth": 9, "deadline_ms": 60_000}
    answered = server.client.post("/predict", json={"queries": QUERIES, **asked}).json()
    wanted = {"all": [{"field": "n", "lt": 5}], "none": [{"field": "hue", "exists": True}]}
    asked["filter"] = wanted
    filtered = server.client.post("/predict", json={"queries": QUERIES, **asked}).json()

    state = {"state": tmp_path / "state", "config": config}
    ended = run("service", *predict(**state, top_k=7, memorization=0.3, depth=9))
    assert ended.returncode == 0, ended.stderr
    assert lines_of(tmp_path / "out.jsonl") == answered["results"]
    assert any("l" in keyword["id"] for keyword in answered["results"][0]["keywords"])
    assert "123 queries; bundle tiny, version 22" in ended.stderr

    state |= {"out": tmp_path / "filtered.jsonl", "filter": orjson.dumps(wanted).decode()}
    ended = run("service", *predict(**state, top_k=7, memorization=0.3, depth=9))
    assert lines_of(tmp_path / "filtered.jsonl") == filtered["results"]
    assert {len(result["keywords"]) for result in filtered["results"]} == {5}
    assert "--filter: no label has the field 'hue'" in ended.stderr


def test_every_format_and_explanations(
    tiny_bundle_folder: Path, predict: Command, tmp_path: Path
) -> None:
    asked = {"queries": QUERIES, "top_k": 100, "explain": True, "deadline_ms": 60_000}
    with local_service(tiny_bundle_folder, tmp_path / "state") as service:
        results = service.post("/predict", asked).json()["results"]
    assert status_of(app, *predict("--explain", top_k=100)) == 0
    assert lines_of(tmp_path / "out.jsonl") == results
    shown = [
        [(keyword["id"], keyword["score"]) for keyword in result["keywords"][:3]]
        for result in results
    ]
    for name in ("out.csv", "out.parquet"):
        assert status_of(app, *predict(out=tmp_path / name, top_k=3)) == 0
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [[(k["id"], k["score"]) for k in row["keywords"]] for row in table] == shown
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], float(row["score"])) for row in rows] == [k for ks in shown for k in ks]
    assert {int(row["row"]) for row in rows} == set(range(1, len(QUERIES) + 1))
    assert {row["score_kind"] for row in (*rows, *table, *results)} == {"votes"}


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_goes_on(
    refused: Refused,
    predict: Command,
    table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    stop: signal.Signals,
) -> None:
    with table.open("a", newline="") as file:
        csv.writer(file).writerows((n, f"{QUERIES[n % 100]} {n}") for n in range(1_000))
    whole = tmp_path / "whole.jsonl"
    assert status_of(app, *predict("--explain", **SMALL_PARTS, out=whole)) == 0
    command = [sys.executable, "-m", "service", *predict("--explain", **SMALL_PARTS)]
    folder = tmp_path / ".out.jsonl.predict"
    first = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(list(folder.glob("*.part"))) > 3)
    first.send_signal(stop)
    _, said = first.communicate(timeout=60)
    if stop == signal.SIGTERM:
        assert "the same command goes on there" in said.splitlines()[-1]
    assert first.returncode == (143 if stop == signal.SIGTERM else -stop)
    assert not (tmp_path / "out.jsonl").exists()

    part = min(folder.glob("*.part"))
    part.write_bytes(part.read_bytes()[:-2])  # as after a power failure

    other = refused(app, *predict("--explain", top_k=999))
    assert "this one has top_k = 999 in place of 1000" in other
    assert status_of(app, *predict("--explain", **SMALL_PARTS)) == 0
    said = capsys.readouterr().err
    assert "1 kept parts are damaged, and are answered again" in said
    assert "goes on after" in said
    assert not folder.exists()
    assert (tmp_path / "out.jsonl").read_bytes() == whole.read_bytes()
    assert len(lines_of(whole)) == len(QUERIES) + 1_000


def test_bad_rows_stop_it_or_are_skipped(
    refused: Refused, predict: Command, table: Path, tmp_path: Path
) -> None:
    with table.open("a", newline="") as file:
        csv.writer(file).writerows([("a", "  "), ("b", "x" * 3_000)])
    line = len(QUERIES) + 2
    assert refused(app, *predict()) == (
        f"{table}:{line}: query: the query is empty; correct the row, or pass --on-bad-row skip to"
        " leave it unanswered"
    )
    assert [path.name for path in tmp_path.iterdir()] == [table.name]
    assert status_of(app, *predict(on_bad_row="skip")) == 0
    *_, last, end = lines_of(tmp_path / "out.jsonl")
    assert last == {"query": "", "keywords": [], "problem": "the query is empty"}
    assert end["problem"] == "the query has 3,000 characters; at most 2,048 are allowed"


def test_wrong_arguments_are_named(
    refused: Refused, predict: Command, table: Path, tmp_path: Path
) -> None:
    assert "no such column; the columns are n, query" in refused(app, *predict(query="text"))
    assert refused(app, *predict(top_k=0)).startswith("--top-k 0: ")
    assert refused(app, *predict(depth=5_000)).startswith("--depth 5000: ")
    assert refused(app, *predict(memorization=2)).startswith("--memorization 2.0: ")
    assert refused(app, *predict(filter="{")).startswith("--filter is not JSON")
    said = refused(app, *predict(filter='{"all": []}'))
    assert "--filter.all must be a list with at least one condition" in said
    assert "cannot be read: No such file" in refused(app, *predict(input=tmp_path / "no.csv"))
    assert "Not a directory" in refused(app, *predict(out=table / "out.csv"))
    assert "exists already" in refused(app, *predict(out=table))
    assert "is not a bundle" in refused(app, *predict(bundle=tmp_path / "none"))
    said = refused(app, *predict(items_column="n"))
    assert "--items-column n: the bundle tiny has no item memory" in said
    said = refused(app, *predict(state=tmp_path / "none"))
    assert str(tmp_path / "none") in said
    assert [path.name for path in tmp_path.iterdir()] == [table.name]


# Items ----------------------------------------------------------------------------------------


@pytest.fixture
def attending(predict: Command, tmp_path: Path) -> Command:
    """`attending(rows, ...)` is the command for rows that name items, on a bundle with items."""
    bundle = make_bundle(tmp_path / "with-items", items=ITEMS)

    def command(rows: list[tuple[str, list[str] | None]], **options: object) -> list[object]:
        lines = [orjson.dumps({"query": query, "tags": items}) for query, items in rows]
        (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
        places = {"bundle": bundle, "input": tmp_path / "in.jsonl", "items_column": "tags"}
        return predict("--explain", **{**places, **options})

    return command


def test_given_items_are_attended_to_as_in_a_server(attending: Command, tmp_path: Path) -> None:
    command, expected = attending(ATTENDING, state=tmp_path / "state"), []
    with local_service(tmp_path / "with-items", tmp_path / "state") as service:
        service.post("/items", {"items": [{"id": "axe", "text": "a good axe"}]})
        service.request("DELETE", "/items/light")
        for query, given in ATTENDING:
            asked = {"queries": [query], "items": given, "explain": True}
            expected += service.post("/predict", asked).json()["results"]
    assert status_of(app, *command) == 0
    assert lines_of(tmp_path / "out.jsonl") == expected
    of_tent = [str(result) for result in expected if result["query"] == "tent"]
    assert len(set(of_tent)) == 4
    assert all("items" in result for result in expected)


def test_an_unknown_item_stops_it_before_anything_is_answered(
    refused: Refused, attending: Command, tmp_path: Path
) -> None:
    rows = [("tent", ["camp"]), ("tent", ["camp", "axe"])]
    assert "kind: there is no such column" in refused(app, *attending(rows, items_column="kind"))
    assert refused(app, *attending(rows)) == (
        f"{tmp_path}/in.jsonl:2: tags: no item has the id or text 'axe'; correct the row, or pass"
        " --on-bad-row skip to leave it unanswered"
    )
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]
    assert status_of(app, *attending(rows, on_bad_row="skip")) == 0
    _, last = lines_of(tmp_path / "out.jsonl")
    assert last["problem"] == "no item has the id or text 'axe'"


# Long files -----------------------------------------------------------------------------------


TOP_K = 100
PART = rows_of_part(TOP_K, explain=True)

Answer = Callable[[int], Path]


@pytest.fixture
def answer(tiny_bundle_folder: Path, tmp_path: Path) -> Answer:
    """`answer(rows)` answers `rows` different queries, with evidence, and returns the file."""

    def answered(rows: int) -> Path:
        queries, out = tmp_path / f"{rows}.txt", tmp_path / f"{rows}.jsonl"
        texts = (f"{WORDS[n % 11]} {WORDS[n // 11 % 11]} {n}" for n in range(rows))
        queries.write_text("\n".join(texts) + "\n")
        options = ("--top-k", TOP_K, "--explain", "--bundle", tiny_bundle_folder)
        assert status_of(app, "predict", *options, "--input", queries, "--out", out) == 0
        return out

    return answered


def test_without_a_terminal_lines_say_how_far_it_is(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    rows = 3 * PART
    out = answer(rows)
    *lines, last = capsys.readouterr().err.splitlines()
    said = re.compile(rf"([\d,]+) of {rows} queries, [\d,]+/s, \d+ s left")
    found = [said.fullmatch(line) for line in lines]
    assert [match and match[1] for match in found] == [str(part * PART) for part in (1, 2, 3)]
    assert last == f"{out}: {rows} queries; bundle tiny, version 0; scores are sums of votes"


def test_memory_does_not_grow_with_the_file(answer: Answer) -> None:
    """Answers kept in memory would take about three times the size of the output file."""

    def peak(rows: int) -> tuple[int, Path]:
        tracemalloc.start()
        try:
            out = answer(rows)
            return tracemalloc.get_traced_memory()[1], out
        finally:
            tracemalloc.stop()

    answer(1)  # imports all modules before memory is measured
    few, _ = peak(8 * PART)
    many, out = peak(32 * PART)
    assert many - few < out.stat().st_size / 4
