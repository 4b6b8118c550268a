"""Serve, learn a thousand clicks, train on them, compare, and serve the better bundle.

Words are made of syllables. Each keyword has four words of its own: its text contains two of them,
a query two of them and a random word. So most queries share one word with their keyword's text. A
trained encoder recognizes it; a hardly trained one does not.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from export.__main__ import app as export
from service.__main__ import app as service
from tests.support.commands import status_of
from tests.support.serving import ServerProcess, server_process
from tests.support.tiny.training import write_recipe, write_tiny_checkpoint
from training.__main__ import app as training

OLD, NEW = 100, 200  # number of keywords in the table, and of posted ones
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
P_AT_1 = re.compile(r"^P@1: A ([\d.]+)%, B ([\d.]+)%.*: B is better$", re.MULTILINE)

Click = tuple[str, str]  # a query, and the id of a keyword


@dataclass
class Vocabulary:
    """Words, keywords and queries; no query is drawn twice."""

    draw: random.Random = field(default_factory=lambda: random.Random(0))
    drawn: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        words: dict[str, None] = {}
        while len(words) < 4 * (OLD + NEW) + 40:
            words["".join(self.draw.sample(SYLLABLES, 3))] = None
        self.words = list(words)

    def text(self, keyword: int) -> str:
        return " ".join(self.words[4 * keyword : 4 * keyword + 2])

    def id(self, keyword: int) -> str:
        return self.text(keyword) if keyword < OLD else f"new-{keyword}"

    def query(self, keyword: int) -> str:
        own = self.draw.sample(self.words[4 * keyword : 4 * keyword + 4], 2)
        text = " ".join([*own, self.draw.choice(self.words[-40:])])
        if text in self.drawn:
            return self.query(keyword)
        self.drawn.add(text)
        return text

    def clicks(self, keywords: range, each: int) -> list[Click]:
        """Draw `each` queries of each keyword, in random order."""
        clicks = [
            (self.query(keyword), self.id(keyword)) for keyword in keywords for _ in range(each)
        ]
        return self.draw.sample(clicks, len(clicks))


def done(app: App, *arguments: object) -> None:
    assert status_of(app, *arguments) == 0


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary()


@pytest.fixture
def folder(vocabulary: Vocabulary, tmp_path: Path) -> Path:
    """A data set of 600 queries, a run of eight steps, and its bundle."""
    rows = [f"{query},{label}" for query, label in vocabulary.clicks(range(OLD), 6)]
    (tmp_path / "clicks.csv").write_text("\n".join(["query,label", *rows]) + "\n")
    table = ("--input", tmp_path / "clicks.csv", "--query", "query", "--label", "label")
    data, run = tmp_path / "data", tmp_path / "runs/first"
    done(training, "data", "pairs", *table, "--out", data, "--test-fraction", 0)
    recipe = write_recipe(tmp_path, model=write_tiny_checkpoint(tmp_path / "start"))
    as_fit = ("--set", "optimizer.precision=auto")  # as in `fit`; a process has one precision
    done(training, "train", recipe, "--data", data, *as_fit, "--out", run)
    source = ("--encoder", run / "best", "--data", data)
    done(export, "bundle", *source, "--out", tmp_path / "bundles/first")
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[ServerProcess]:
    with server_process(folder / "bundles/first", folder / "state", folder / "log") as server:
        yield server


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> int:
    """Send a write; return the new version."""
    answer = server.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["version"])


def post_clicks(server: ServerProcess, clicks: list[Click]) -> int:
    instances = [{"query": query, "labels": [label]} for query, label in clicks]
    return post(server, "/instances", {"instances": instances})


def post_labels(server: ServerProcess, vocabulary: Vocabulary) -> None:
    labels = [
        {
            "id": vocabulary.id(keyword),
            "text": vocabulary.text(keyword),
            "queries": [vocabulary.query(keyword)] if keyword % 2 else [],
            "metadata": {"number": str(keyword)},
        }
        for keyword in range(OLD, OLD + NEW)
    ]
    post(server, "/labels", {"labels": labels})


def labels_of(server: ServerProcess, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Get every label, one per request, without `novel`, which a reload changes."""
    answers = [
        server.client.get(f"/labels/{vocabulary.id(keyword)}") for keyword in range(OLD + NEW)
    ]
    assert {answer.status_code for answer in answers} == {200}
    return [{k: v for k, v in answer.json().items() if k != "novel"} for answer in answers]


def qualities(folder: Path, before: str, capsys: pytest.CaptureFixture[str]) -> tuple[float, ...]:
    """Return the P@1 on the later clicks, in percent, of bundle `before` and of the second one."""
    bundles = ("--bundle", folder / "bundles" / before, "--bundle", folder / "bundles/second")
    queries = ("--input", folder / "later.csv", "--query", "query", "--label", "label_id")
    capsys.readouterr()
    done(service, "compare", *bundles, *queries, "--out", folder / f"{before}.html")
    found = P_AT_1.search(capsys.readouterr().out)
    assert found is not None
    return tuple(map(float, found.groups()))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_on_what_was_learned_finds_later_clicks_and_loses_no_label(
    folder: Path, server: ServerProcess, vocabulary: Vocabulary, capsys: pytest.CaptureFixture[str]
) -> None:
    clicked = range(OLD // 2, OLD + NEW)
    post_labels(server, vocabulary)
    version = post_clicks(server, vocabulary.clicks(clicked, 3))
    post_clicks(server, vocabulary.clicks(clicked, 1))
    before = labels_of(server, vocabulary)

    first = ("--bundle", folder / "bundles/first", "--state", folder / "state")
    learned = ("--data", folder / "data", "--test-since", version + 1)
    done(training, "data", "log", *first, *learned, "--out", folder / "next")
    assert "200 labels posted, 0 deletions, 1,000 clicks" in capsys.readouterr().out
    done(training, "data", "table", "--data", folder / "next", "--out", folder / "later.csv")
    # The memory before the later clicks: the first bundle and everything learned so far.
    done(service, "snapshot", *first, "--until", version, "--out", folder / "bundles/live")

    source = ("--data", folder / "next", "--encoder", folder / "runs/first")
    done(training, "fit", *source, "--minutes", 2, "--out", folder / "runs/second")
    source = ("--encoder", folder / "runs/second/best", "--data", folder / "next")
    done(export, "bundle", *source, "--out", folder / "bundles/second")
    for served in ("first", "live"):
        quality, trained = qualities(folder, served, capsys)
        assert trained > quality + 20  # on an idle machine the gain is at least 45

    post(server, "/admin/reload", {"bundle": "second"})
    assert server.client.get("/info").json()["bundle"]["name"] == "second"
    assert labels_of(server, vocabulary) == before
    novel = server.client.get(f"/labels/{vocabulary.id(OLD)}").json()["novel"]
    assert novel is False  # it is in the new bundle
