"""Serve, learn, write the log as a data set, train on it, and serve the new bundle."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from export.__main__ import app as export
from service.__main__ import app as service
from service.core.bundle import manifest
from tests.support.commands import Refused, status_of
from tests.support.serving import ServerProcess, local_service, server_process
from tests.support.tiny.training import write_recipe, write_tiny_checkpoint
from training.__main__ import app as training
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, Split

ENCODER = Path(__file__).parents[3] / "deploy/demo/encoder"
THINGS = "tent boots lamp stove bottle jacket rope knife".split()
KINDS = "red green blue small large cheap".split()
CLICKED = {  # in addition to the keyword that equals the query
    "tent": ("tarp", "hammock"),
    "camping tent": ("tent", "tarp"),
    "head lamp": ("torch", "lamp"),
    "lamp": ("torch", "lantern"),
    "gas stove": ("stove", "burner"),
    "stove": ("burner", "gas stove"),
    "boots": ("hiking boots", "shoes"),
}
OLD, NEW = 100, 200  # number of keywords in the table, and of posted ones
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
P_AT_1 = re.compile(r"^P@1: A ([\d.]+)%, B ([\d.]+)%", re.MULTILINE)

Click = tuple[str, str]  # a query, and the id of its keyword


def done(app: App, *arguments: object) -> None:
    assert status_of(app, *arguments) == 0


def write_data(folder: Path, clicks: Sequence[tuple[str, str]], *options: object) -> Path:
    """Write (query, label) rows as the data set `folder`/data."""
    rows = [f"{query},{label}" for query, label in clicks]
    (folder / "clicks.csv").write_text("\n".join(["query,label", *rows]) + "\n")
    table = ("--input", folder / "clicks.csv", "--query", "query", "--label", "label")
    done(training, "data", "pairs", *table, "--out", folder / "data", *options)
    return folder / "data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 48 queries, and its bundle."""
    folder = tmp_path_factory.mktemp("circle")
    data = write_data(folder, [(f"{kind} {thing}", thing) for thing in THINGS for kind in KINDS])
    source = ("--encoder", ENCODER, "--data", data)
    done(export, "bundle", *source, "--out", folder / "bundles/first")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with server_process(folder / "bundles/first", folder / "state", folder / "log") as server:
        learn(server)
        yield server


def learn(server: ServerProcess) -> None:
    kayak = {"id": "kayak", "text": "sea kayak", "aliases": ["KY-55"], "queries": ["boat for one"]}
    labels = [kayak, {"id": "oar", "text": "oar", "metadata": {"brand": "acme"}}, {"text": "gone"}]
    assert server.client.post("/labels", json={"labels": labels}).status_code == 200
    for query, ids in (("paddling", ["kayak"]), ("paddling", ["kayak", "oar"]), ("dusk", ["lamp"])):
        instances = {"instances": [{"query": query, "labels": ids}]}
        assert server.client.post("/instances", json=instances).status_code == 200
    for label in ("gone", "knife"):
        assert server.client.delete(f"/labels/{label}").status_code == 200


def weights(split: Split, dataset: Dataset, query: str) -> dict[str, float]:
    row = split.labels_of[split.instances.texts.index(query)]
    ids = [dataset.labels.uids[column] for column in row.indices]
    return dict(zip(ids, row.data.tolist(), strict=True))


def keywords(server: ServerProcess, query: str) -> list[str]:
    answer = server.client.post("/predict", json={"queries": [query], "top_k": 3})
    return [keyword["id"] for keyword in answer.json()["results"][0]["keywords"]]


def test_what_was_learned_is_trained_on_exported_and_served(
    folder: Path, server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ("--bundle", folder / "bundles/first", "--state", folder / "state")
    done(training, "data", "log", *places, "--data", folder / "data", "--out", folder / "next")
    said = capsys.readouterr().out
    assert "3 labels posted, 2 deletions, 3 clicks" in said
    assert "9 labels, 2 of them new" in said
    first, learned = lf_xmc.read(folder / "data"), lf_xmc.read(folder / "next")
    fields = dict(zip(learned.labels.uids, learned.label_fields or (), strict=True))
    assert {uid: own for uid, own in fields.items() if own} == {"oar": {"brand": "acme"}}
    aliases = dict(zip(learned.labels.uids, learned.label_aliases or (), strict=True))
    assert {uid: own for uid, own in aliases.items() if own} == {"kayak": ("KY-55",)}
    assert "KY-55" not in learned.train.instances.texts
    assert weights(learned.train, learned, "paddling") == {"kayak": 2.0, "oar": 1.0}
    assert weights(learned.train, learned, "boat for one") == {"kayak": 1.0}
    assert set(learned.test.instances.texts) <= set(first.test.instances.texts)

    source = ("--encoder", ENCODER, "--data", folder / "next")
    done(export, "bundle", *source, "--out", folder / "bundles/second")
    facts = manifest.read(folder / "bundles/second").learned
    assert facts == learned.learned
    before = server.client.get("/labels/kayak").json()
    assert server.client.post("/admin/reload", json={"bundle": "second"}).status_code == 200
    assert server.client.get("/info").json()["bundle"]["name"] == "second"
    assert keywords(server, "paddling")[0] == "kayak"
    after = server.client.get("/labels/kayak").json()
    assert (after["queries"], after["aliases"]) == (before["queries"], ["KY-55"])
    assert keywords(server, "ky 55")[0] == "kayak"
    assert server.client.get("/labels/oar").json()["metadata"] == {"brand": "acme"}
    for label in ("gone", "knife"):
        assert server.client.get(f"/labels/{label}").status_code == 404

    again = ("--bundle", folder / "bundles/second", "--state", folder / "state")
    done(training, "data", "log", *again, "--data", folder / "next", "--out", folder / "third")
    third = lf_xmc.read(folder / "third")
    assert weights(third.train, third, "paddling") == {"kayak": 2.0, "oar": 1.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--since", "yesterday"), "--since must be a date or time"),
        (("--test-since", "1", "--test-fraction", "0.1"), "--test-fraction cannot stand beside"),
        (("--test-fraction", "1"), "must be at least 0 and below 1"),
        (("--test-since", "2999-01-01"), "no query is left for the test split"),
        (("--state", "nowhere"), "nowhere"),
        (("--bundle", "nowhere"), "is not a bundle"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    refused: Refused,
    folder: Path,
    server: ServerProcess,
    options: tuple[str, ...],
    message: str,
) -> None:
    given = {"--bundle": folder / "bundles/first", "--state": folder / "state"}
    places = [part for name in given if name not in options for part in (name, given[name])]
    out = folder / "refused"
    assert message in refused(training, "data", "log", *places, *options, "--out", out)
    assert not out.exists()


def test_a_keyword_that_equals_the_query_is_served_first_with_keep_exact(tmp_path: Path) -> None:
    """Each query has as many clicks for each of two other keywords."""
    clicks = [(query, label) for query, others in CLICKED.items() for label in (query, *others)]
    data = write_data(tmp_path, clicks, "--keep-exact", "--test-fraction", 0)
    assert lf_xmc.read(data).train.filtered.nnz == 0
    done(export, "bundle", "--encoder", ENCODER, "--data", data, "--out", tmp_path / "bundle")
    with local_service(tmp_path / "bundle", tmp_path / "state") as running:
        answer = running.post("/predict", {"queries": list(CLICKED), "top_k": 3}).json()
    first = {result["query"]: result["keywords"][0]["text"] for result in answer["results"]}
    assert first == {keyword: keyword for keyword in CLICKED}


@dataclass
class Vocabulary:
    """Words, keywords and queries, made of syllables; no query is drawn twice.

    Each keyword has four words of its own: its text contains two of them, a query two of them and a
    random word. So most queries share one word with their keyword's text. A trained encoder
    recognizes it; a hardly trained one does not.
    """

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


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary()


@pytest.fixture
def drawn(vocabulary: Vocabulary, tmp_path: Path) -> Path:
    """A data set of 600 queries, a run of eight steps, and its bundle."""
    data = write_data(tmp_path, vocabulary.clicks(range(OLD), 6), "--test-fraction", 0)
    recipe = write_recipe(tmp_path, model=write_tiny_checkpoint(tmp_path / "start"))
    run = tmp_path / "runs/first"
    as_fit = ("--set", "optimizer.precision=auto")  # as in `fit`; a process has one precision
    done(training, "train", recipe, "--data", data, *as_fit, "--out", run)
    source = ("--encoder", run / "best", "--data", data)
    done(export, "bundle", *source, "--out", tmp_path / "bundles/first")
    return tmp_path


@pytest.fixture
def service_of_drawn(drawn: Path) -> Iterator[ServerProcess]:
    with server_process(drawn / "bundles/first", drawn / "state", drawn / "log") as server:
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
    drawn: Path,
    service_of_drawn: ServerProcess,
    vocabulary: Vocabulary,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, server = drawn, service_of_drawn
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
    done(export, "bundle", *source, "--hold-out-test", "--out", folder / "bundles/second")
    found = {served: qualities(folder, served, capsys) for served in ("first", "live")}
    quality, trained = found["first"]
    assert trained > quality + 20  # on an idle machine the gain is at least 45
    quality, trained = found["live"]  # finds what was posted by its words, without training
    assert quality > 80 and trained > quality - 5

    post(server, "/admin/reload", {"bundle": "second"})
    assert server.client.get("/info").json()["bundle"]["name"] == "second"
    assert labels_of(server, vocabulary) == before
    novel = server.client.get(f"/labels/{vocabulary.id(OLD)}").json()["novel"]
    assert novel is False  # it is in the new bundle
