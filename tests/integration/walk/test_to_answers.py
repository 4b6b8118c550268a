"""A new user's first steps, as processes: from a messy table to a served and measured bundle."""

import csv
import io
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.child_server import HOST, Client, running_server
from tests.support.commands import run
from training.datasets import lf_xmc

DEMO = Path(__file__).parents[3] / "deploy/demo/encoder"
KINDS = ("red", "green", "blue", "small", "large", "cheap", "best", "used", "new", "light")
NOUNS = ("tent", "lamp", "stove", "bottle", "jacket", "rope", "knife", "compass", "map", "torch")
LONG = "trail running shoes " * 250  # 5,000 characters
ODD = [
    ("shoes, red", "boots; red", "2"),  # separators within quotes
    ("tent\nfor two", "camping", "1.5"),  # a line break within quotes
    ('15" rim', "wheels", "1"),
    ("cafe\u0301 cr\u00e8me", "coffee", "3"),  # a combining accent, and an accented character
    ("🏕️ 👩‍👩‍👧", "camping 🏕️", "1"),
    ("חדר כושר", "fitness", "0.25"),
    (LONG, "running shoes", "4"),
]
EMPTY = [("", "boots", "1"), ("lamp", "", "1"), ("lamp", "light", "")]  # three bad rows


def write_messy_table(path: Path) -> int:
    """Write a csv with a byte order mark and CRLF; returns its number of rows."""
    plain = [(f"{kind} {noun}", f"{noun}s", "1") for noun in NOUNS for kind in KINDS]
    rows = [*plain, *ODD, *plain[:20], *EMPTY, *ODD[:2]]
    content = io.StringIO()
    csv.writer(content, lineterminator="\r\n").writerows([("Query", "Keyword", "Clicks"), *rows])
    path.write_bytes(b"\xef\xbb\xbf" + content.getvalue().encode())
    return len(rows)


def done(*arguments: object) -> str:
    """Run a command, which must succeed, and return its output."""
    ended = run(*arguments, seconds=240)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout


def prepared(folder: Path) -> Path:
    """Run the first command; return the data set's folder."""
    rows = write_messy_table(folder / "clicks.csv")
    data = folder / "data"
    columns = ("--query", "Query", "--label", "Keyword", "--weight", "Clicks")
    table = ("--input", folder / "clicks.csv", "--on-bad-row", "skip")
    said = done("training", "data", "pairs", *table, *columns, "--out", data)
    assert f"{rows} rows read" in said
    assert "22 rows repeat a pair: their weights are added" in said
    assert "1 rows have an empty weight: they weigh 1" in said
    assert "2 rows rejected" in said
    rejects = (folder / "data.rejects.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in rejects[1:]] == ["Query", "Keyword"]
    return data


def answers(bundle: Path) -> dict[str, list[dict[str, Any]]]:
    """Serve the bundle; return the keywords of each odd query."""
    queries = [query for query, _, _ in ODD if query != LONG]
    with (
        running_server(bundle, options=["--workers", "1"]) as server,
        closing(Client(HOST, server.port)) as client,
    ):
        answer = client.post("/predict", {"queries": queries, "top_k": 3})
    return {result["query"]: result["keywords"] for result in answer["results"]}


@pytest.mark.slow
def test_a_messy_table_is_served(tmp_path: Path) -> None:
    data, bundle = prepared(tmp_path), tmp_path / "bundle"
    places = ("--data", data, "--out", bundle)
    done("export", "bundle", "--encoder", DEMO, *places, "--hold-out-test")
    figures = tmp_path / "figures.json"
    done("training", "score", "--bundle", bundle, "--data", data, "--json", figures)
    row = orjson.loads(figures.read_bytes())["rows"][0]
    assert row["metrics"]["P@1"] > 50  # by chance: 7
    found = answers(bundle)
    trained = set(lf_xmc.read(data).train.instances.texts)  # other queries are not in the memory
    known = {query: label for query, label, _ in ODD if " ".join(query.split()) in trained}
    known.pop(LONG, None)
    assert len(known) >= 3
    for query, label in known.items():
        assert label in [keyword["text"] for keyword in found[query]]
