"""Writes of every kind to a tiny bundle over HTTP, and all that a service shows of them."""

from typing import Any

from tests.support.serving import LocalService

FAR_FUTURE = "2099-12-31T00:00:00Z"
QUERY = "trail footwear"  # a training query of shoes and boots
QUERIES = [QUERY, "cook outdoors", "gas for the stove", "climbing", "light for a tent"]
LABELS = ("boots", "lamp", "shoes", "stove", "tent", "axe", "later", "gone")
PAIRS = {
    "clicked": {"query": "climbing", "labels": ["axe", "boots"], "at": "2020-02-02T20:20:02Z"},
    "rejected": {"query": QUERY, "labels": ["lamp"], "negative": True, "weight": 0.3},
    "forgotten": {"query": "climbing", "labels": ["boots"]},
    "trained": {"query": QUERY, "labels": ["boots"]},
    "listed": {"query": "ice tool", "labels": ["axe"]},
}
RULES = [
    {"id": "hide", "when": {"query": "cook", "match": "phrase"}, "then": {"hide": ["stove"]}},
    {"id": "pin", "then": {"pin": [{"id": "axe", "position": 1}]}, "starts_at": FAR_FUTURE},
    {"id": "gone", "then": {"hide": ["tent"]}},
]


def write_every_kind(service: LocalService) -> int:
    """Send writes of every kind but those of items; return the version of the last one."""
    axe = {"id": "axe", "text": "ice axe", "queries": ["ice tool", "pick"], "boost": 2.5}
    later = {"id": "later", "text": "gas for the stove", "starts_at": FAR_FUTURE}
    gone = {"id": "gone", "text": "gone"}
    learned = [PAIRS["clicked"], PAIRS["rejected"]]
    unlearned = [PAIRS["forgotten"], PAIRS["trained"], PAIRS["listed"]]
    for method, path, document in (
        ("POST", "/labels", {"labels": [axe, later, gone]}),
        ("DELETE", "/labels/gone", None),
        ("POST", "/instances", {"instances": learned}),
        ("DELETE", "/instances", {"instances": unlearned, "trained": True}),
        ("POST", "/rules", {"rules": RULES}),
        ("DELETE", "/rules/gone", None),
    ):
        how = {} if document is None else {"json": document}
        answer = service.request(method, path, **how)
        assert answer.status_code == 200, answer.text
    return int(answer.json()["version"])


def shown_of(service: LocalService, *, min_version: int = 0) -> dict[str, Any]:
    """Return the labels and rules that a service shows, and answers with their evidence."""
    asked = {"queries": QUERIES, "explain": True, "top_k": 50, "depth": 100}
    answer = service.post("/predict", {**asked, "min_version": min_version})
    assert answer.status_code == 200, answer.text
    return {
        "results": answer.json()["results"],
        "rules": service.get("/rules").json()["rules"],
        "labels": [service.get(f"/labels/{label_id}").json() for label_id in LABELS],
    }


def assert_every_kind(shown: dict[str, Any]) -> None:
    """Check what `shown_of` returns after the writes of `write_every_kind`."""
    labels = dict(zip(LABELS, shown["labels"], strict=True))
    assert labels["axe"]["queries"] == ["pick"] and labels["axe"]["boost"] == 2.5
    assert labels["axe"]["clicked"] == {"total": 1, "newest": ["climbing"]}
    assert labels["boots"]["clicked"] == {"total": 0, "newest": []}
    assert labels["lamp"]["clicked"] == {"total": 1, "newest": [QUERY], "weights": {QUERY: -0.3}}
    assert labels["later"]["starts_at"] == FAR_FUTURE
    assert labels["gone"]["status"] == 404
    assert shown["rules"] == RULES[:2]
    trail, cooking, gas, *_ = shown["results"]
    rows = {one["id"]: [row["text"] for row in one["evidence"]] for one in trail["keywords"]}
    assert QUERY in rows["shoes"] and QUERY not in rows["boots"]
    assert cooking["rules"] == ["hide"]
    assert "stove" not in {one["id"] for one in cooking["keywords"]}
    assert "later" not in {one["id"] for one in gas["keywords"]}
