"""The routes under /labels: posted labels are predicted at once, listed and shown."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Semaphore
from typing import Any

import orjson
import pytest

from service.core.memory.label_table import LabelTable
from service.core.memory.view import View
from service.http.labels import MOST_LISTS, LabelPage, LabelsAnswer, ShownLabelAnswer
from service.http.request_body import NDJSON
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService
from tests.support.tiny.bundles import LABELS
from tests.support.waiting import wait_for

AXE = {"id": "axe", "text": "ice axe", "queries": ["glacier tool"], "metadata": {"shop": "acme"}}
NO_CLICKS = {"total": 0, "newest": []}
ODD_IDS = [
    "a/b", "/leading", "trailing/", "a//b", "..", ".", "../../etc", "%2F", "100%", "a+b", "a b",
    "?limit=1", "#fragment", "a;b", "ünï/cödé", "靴", "🥾", "a\nb", "'", '"', "labels", "\\",
    "\u202ereversed", "x" * 2048,
]  # fmt: skip


def put(service: LocalService, *labels: dict[str, Any]) -> dict[str, Any]:
    answer = service.post("/labels", {"labels": labels})
    assert answer.status_code == 200, answer.text
    assert_answer(answer.json(), LabelsAnswer)
    return answer.json()


def statuses(answer: dict[str, Any]) -> list[str]:
    return [label["status"] for label in answer["labels"]]


def keywords(service: LocalService, query: str, **options: Any) -> dict[str, dict[str, Any]]:
    body = {"queries": [query], "explain": True, "depth": 100, "top_k": 100, **options}
    found = service.post("/predict", body).json()["results"][0]["keywords"]
    return {keyword["id"]: keyword for keyword in found}


def percent_encoded(label_id: str) -> str:
    return "".join(f"%{byte:02X}" for byte in label_id.encode())


def test_a_label_is_created_then_unchanged_then_updated(service: LocalService) -> None:
    created = put(service, AXE)
    label = {"id": "axe", "status": "created", "neighbours": []}
    assert created == {"version": 1, "labels": [label]}
    assert put(service, AXE) == {"version": 1, "labels": [{**label, "status": "unchanged"}]}
    for version, change in enumerate(
        [{"text": "ice tool"}, {"queries": []}, {"metadata": {}}], start=2
    ):
        AXE_NOW = {**AXE, **change}
        assert put(service, AXE_NOW)["version"] == version
        shown = {**AXE_NOW, "novel": True, "version": version, "clicked": NO_CLICKS}
        assert service.get("/labels/axe").json() == shown


def test_a_label_is_predicted_from_the_answer_on_as_it_was_last_posted(
    service: LocalService,
) -> None:
    assert "axe" not in keywords(service, "ice axe")
    version = put(service, AXE)["version"]
    answer = service.post("/predict", {"queries": ["ice axe"], "memorization": 0})
    assert answer.json()["version"] == version
    found = answer.json()["results"][0]["keywords"]
    assert (found[0]["id"], found[0]["text"], found[0]["novel"]) == ("axe", "ice axe", True)
    assert not any({"metadata", "evidence"} & keyword.keys() for keyword in found)
    assert keywords(service, "ice axe")["axe"]["metadata"] == {"shop": "acme"}
    by_query = keywords(service, "glacier tool", memorization=1)
    [row] = by_query["axe"]["evidence"]
    assert (row["kind"], row["text"]) == ("instance", "glacier tool")
    assert row["similarity"] == pytest.approx(1, abs=1e-3)
    assert next(iter(by_query)) == "axe"
    put(service, {"id": "axe", "text": "snow shovel", "queries": ["dig a cave"]})
    for query in ("ice axe", "glacier tool", "snow shovel", "dig a cave"):
        axe = keywords(service, query)["axe"]
        assert axe["text"] == "snow shovel"
        assert {row["text"] for row in axe["evidence"]} == {"snow shovel", "dig a cave"}


def test_a_label_without_id_gets_its_normalized_text(service: LocalService) -> None:
    text = "  \uff29\uff43\uff45   AXE "
    assert put(service, {"text": text})["labels"][0]["id"] == "ice axe"
    assert service.get("/labels/ice%20axe").json()["text"] == text.strip()


def test_labels_are_shown_by_any_id(service: LocalService) -> None:
    put(service, *({"id": label_id, "text": "odd"} for label_id in ODD_IDS))
    for label_id in ODD_IDS:
        shown = service.get(f"/labels/{percent_encoded(label_id)}")
        assert shown.status_code == 200, label_id
        assert shown.json()["id"] == label_id
    assert {label["id"] for label in service.get("/labels").json()["labels"]} == set(ODD_IDS)


def test_base_labels_are_shown_too(reader: LocalService) -> None:
    shown = reader.get("/labels/tent").json()
    assert_answer(shown, ShownLabelAnswer)
    assert shown == {
        "id": "tent", "text": "camping tent", "queries": [], "metadata": {},
        "novel": False, "version": 0, "clicked": NO_CLICKS,
    }  # fmt: skip


def test_queries_learned_by_clicks_are_shown_beside_those_posted_with_the_label(
    service: LocalService,
) -> None:
    put(service, AXE)
    clicks = [("climb a serac", ["axe", "tent"]), ("ice tool", ["axe"]), ("igloo", ["tent"])]
    for query, labels in clicks:
        click = {"instances": [{"query": query, "labels": labels}]}
        assert service.post("/instances", click).status_code == 200
    shown = service.get("/labels/axe").json()
    assert shown["queries"] == AXE["queries"]
    assert shown["clicked"] == {"total": 2, "newest": ["ice tool", "climb a serac"]}
    put(service, {**AXE, "text": "ice pick"})
    assert service.get("/labels/axe").json()["clicked"] == shown["clicked"]
    service.request("DELETE", "/labels/axe")
    put(service, AXE)
    assert service.get("/labels/axe").json()["clicked"] == NO_CLICKS


@pytest.mark.parametrize("label_id", ["nope", "", "a/b", "%00", "tent%20"])
def test_an_unknown_label_is_a_404(reader: LocalService, label_id: str) -> None:
    for method in ("GET", "DELETE"):
        assert_problem(reader.request(method, f"/labels/{label_id}"), 404)
    assert reader.get("/info").json()["version"] == 0


def test_all_pages_together_hold_every_live_label_once(service: LocalService) -> None:
    ids = [f"label {number:03}" for number in range(25)]
    put(service, *({"text": label_id} for label_id in reversed(ids)))
    for limit in (1, 24, 25, 26):
        found, cursor, pages = [], "", 0
        while cursor is not None:
            page = service.get("/labels", params={"after": cursor, "limit": limit}).json()
            assert_answer(page, LabelPage)
            assert len(page["labels"]) <= limit
            found += [label["id"] for label in page["labels"]]
            cursor, pages = page["next"], pages + 1
        assert found == ids
        assert pages == -(-25 // limit)
    put(service, *({"text": f"label {number:03}"} for number in range(101)))
    assert len(service.get("/labels").json()["labels"]) == 100
    assert len(service.get("/labels?limit=1000").json()["labels"]) == 101


def test_every_label_is_listed_and_found_by_its_words(service: LocalService) -> None:
    posted = [{"id": "a tent", "text": "Red-Tent, large"}, {"id": "tent", "text": "tent"}]
    assert service.post("/labels", {"labels": posted}).status_code == 200
    assert service.request("DELETE", "/labels/lamp").status_code == 200

    def pages(**how: Any) -> list[str]:
        found, after = list[str](), ""
        while after is not None:
            answer = service.get("/labels", params={"limit": 2, "after": after, **how}).json()
            found += [label["id"] for label in answer["labels"]]
            after = answer["next"]
        return found

    of_bundle = set(LABELS) - {"lamp"}
    assert pages(every=True) == sorted(of_bundle | {"a tent"})
    assert pages() == pages(every=False) == ["a tent", "tent"]
    assert pages(text="LARGE tent") == pages(text="tent red", every=True) == ["a tent"]
    assert "tent" in pages(text="tent", every=True)
    assert pages(text="no such", every=True) == pages(text="!!") == []
    assert_problem(service.get("/labels", params={"text": " "}), 422, field="text")
    assert_problem(service.get("/labels", params={"every": "perhaps"}), 422, field="every")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limt=3", "limt"),
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("limit=many", "limit"),
        ("limit=1.5", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("after=a&before=b", "before"),
        *((f"after={wrong}", "after") for wrong in ("tent", "after.x", "%00")),
    ],
)
def test_a_wrong_page_is_a_422(reader: LocalService, query: str, field: str) -> None:
    assert_problem(reader.get(f"/labels?{query}"), 422, field=field)


def test_labels_from_many_threads_get_gapless_versions(service: LocalService) -> None:
    texts = [f"label {number}" for number in range(40)]

    def write(text: str) -> tuple[str, int]:
        version = put(service, {"text": text})["version"]
        assert text in keywords(service, text, min_version=version)
        return text, version

    with ThreadPoolExecutor(8) as threads:
        answered = dict(threads.map(write, texts))
    stored = {text: service.get(f"/labels/{text}").json()["version"] for text in texts}
    assert sorted(stored.values()) == list(range(1, 41))
    # One commit may hold the labels of several requests; each answer has its last version.
    assert all(stored[text] <= answered[text] <= 40 for text in texts)


def test_the_same_label_from_many_threads_is_created_once(service: LocalService) -> None:
    """Repeated queries of a label count once, too."""
    label = {**AXE, "queries": ["dig", "dig ", "pick"]}
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: put(service, label), range(40)))
    found = [status for answer in answers for status in statuses(answer)]
    assert sorted(found) == ["created"] + ["unchanged"] * 39
    assert {answer["version"] for answer in answers} == {1}
    assert service.get("/labels/axe").json()["queries"] == ["dig", "pick"]


def test_a_text_that_is_known_updates_the_label_that_has_it(service: LocalService) -> None:
    """A text belongs to one label, which keeps the id of the bundle or of the first post."""
    before = len(keywords(service, "camping tent"))
    [known] = put(service, {"text": " Camping  TENT", "queries": ["biwak"]})["labels"]
    assert (known["id"], known["status"]) == ("tent", "updated")
    assert service.get("/labels/tent").json()["text"] == "Camping  TENT"
    assert len(keywords(service, "camping tent")) == before
    again = put(service, {"text": " Camping  TENT", "queries": ["biwak"]})
    assert (again["version"], statuses(again)) == (1, ["unchanged"])
    put(service, AXE)
    assert put(service, {"text": "ICE AXE"})["labels"][0]["id"] == "axe"
    assert_problem(service.get("/labels/ice%20axe"), 404)
    shared = [{"id": f"sku-{number}", "text": "t-shirt"} for number in range(3)]
    assert statuses(put(service, *shared)) == ["created"] * 3
    assert put(service, {"text": "T-Shirt"})["labels"][0]["id"] == "sku-0"


def test_a_stream_updates_the_label_that_has_the_text(service: LocalService) -> None:
    lines = b'{"text": "CAMPING tent"}\n{"text": "Ice Axe"}\n{"text": "ice  axe"}\n'
    answer = service.post("/labels", content=lines, headers={"content-type": NDJSON})
    written = [orjson.loads(line) for line in answer.content.splitlines()]
    assert [(line["id"], line["status"]) for line in written] == [
        ("tent", "updated"),
        ("ice axe", "created"),
        ("ice axe", "updated"),
    ]
    metrics = service.get("/metrics").text  # a stream is one request
    assert 'requests_total{route="/labels",status="200"} 1.0' in metrics


def test_a_text_of_any_length_makes_an_id_that_every_route_takes(service: LocalService) -> None:
    """NFKC turns the first text into 36,864 characters, and the second into more than 2,048."""
    texts = ["\ufdfa" * 2048, "a… " * 600 + "é" * 240, "ﬃ" * 2048, "\U0001f97e" * 2048]
    put(service, *({"text": text} for text in texts))
    found, cursor = [], ""
    while cursor is not None:
        page = service.get("/labels", params={"after": cursor, "limit": 1})
        assert page.status_code == 200
        found += page.json()["labels"]
        cursor = page.json()["next"]
        assert len(cursor or "") < 300
    assert {label["text"] for label in found} == set(texts)
    for label in found:
        click = {"instances": [{"query": "q", "labels": [label["id"]]}]}
        assert service.post("/instances", click).status_code == 200
        path = f"/labels/{percent_encoded(label['id'])}"
        assert service.get(path).status_code == 200
        assert service.request("DELETE", path).status_code == 200


def test_lists_wait_for_each_other_and_not_without_bound(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow lists are, few are made at once, and queries are answered meanwhile."""
    entered, released = Semaphore(0), Event()
    usual = View.labels_with_words

    def slow(view: View, text: str) -> LabelTable:
        entered.release()
        assert released.wait(60)
        return usual(view, text)

    monkeypatch.setattr(View, "labels_with_words", slow)
    with ThreadPoolExecutor(MOST_LISTS + 1) as threads:
        path = "/labels?text=tent&every=true"
        lists = [threads.submit(service.get, path) for _ in range(MOST_LISTS + 1)]
        try:
            [refused] = wait_for(lambda: [one for one in lists if one.done()])
            assert_problem(refused.result(), 429)
            assert refused.result().headers["retry-after"] == "1"
            assert service.post("/predict", {"queries": ["tent"]}).status_code == 200
            assert entered.acquire(timeout=60)
            assert not entered.acquire(timeout=0.05)  # one at a time
        finally:
            released.set()
        statuses = sorted(one.result(60).status_code for one in lists)
    assert statuses == [200] * MOST_LISTS + [429]
    assert service.get("/labels?text=tent").status_code == 200
