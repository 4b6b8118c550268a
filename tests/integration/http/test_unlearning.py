"""DELETE /instances unlearns pairs; negative instances vote against their labels."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from service.http.instances import UnlearnAnswer
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService

QUERY = "trail footwear"  # a training query of shoes and boots


def pair(query: str, *labels: str, **more: Any) -> dict[str, Any]:
    return {"query": query, "labels": list(labels), **more}


def learn(service: LocalService, *instances: dict[str, Any], **more: Any) -> httpx.Response:
    return service.post("/instances", {"instances": list(instances)}, **more)


def unlearn(
    service: LocalService, *instances: dict[str, Any], key: str = "", **more: Any
) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    """Unlearn pairs from everything, training data included."""
    body = {"instances": list(instances), "trained": True, **more}
    return service.request("DELETE", "/instances", json=body, headers=headers)


def take_back(service: LocalService, *instances: dict[str, Any], **more: Any) -> httpx.Response:
    return service.request("DELETE", "/instances", json={"instances": list(instances), **more})


def evidence(service: LocalService, query: str) -> dict[str, list[str]]:
    """Map the ids of the keywords to the texts of the rows that voted for them."""
    asked = {"queries": [query], "top_k": 100, "depth": 100, "explain": True}
    [result] = service.post("/predict", asked).json()["results"]
    return {
        keyword["id"]: [row["text"] for row in keyword["evidence"]]
        for keyword in result["keywords"]
    }


def clicked(service: LocalService, label_id: str) -> dict[str, Any]:
    return service.get(f"/labels/{label_id}").json()["clicked"]


# Unlearning ------------------------------------------------------------------------------


def test_pairs_are_unlearned_wherever_they_are(serve: Callable[..., LocalService]) -> None:
    service = serve()
    axe = {"id": "axe", "text": "ice axe", "queries": ["glacier tool", "ice tool"]}
    service.post("/labels", {"labels": [axe]})
    learn(service, pair(QUERY, "tent", "lamp", weight=3.0))
    answer = unlearn(
        service,
        pair(QUERY, "shoes", "tent", "stove", "shoes"),  # the stove was never learned
        pair("glacier tool", "axe"),
        pair("no such query", "axe"),
    )
    assert_answer(answer.json(), UnlearnAnswer)
    assert answer.json() == {"version": 4, "unlearned": 3}
    rows = evidence(service, QUERY)
    assert QUERY in rows["boots"] and QUERY in rows["lamp"]
    assert QUERY not in [*rows["shoes"], *rows["tent"]]
    assert service.get("/labels/axe").json()["queries"] == ["ice tool"]
    assert clicked(service, "tent") == {"total": 0, "newest": []}
    assert clicked(service, "lamp")["weights"] == {QUERY: 3.0}
    service.engine.close()
    service = serve()  # the log holds it
    assert evidence(service, QUERY) == rows
    assert service.get("/info").json()["version"] == 4


def test_what_is_not_known_is_no_error_and_no_event(service: LocalService) -> None:
    for instance in (pair("no such query", "tent"), pair(QUERY, "tent"), pair("Trail", "boots")):
        assert unlearn(service, instance).json() == {"version": 0, "unlearned": 0}
    twice = unlearn(service, pair(QUERY, "boots"), pair(f" {QUERY}\n", "boots"))
    assert twice.json() == {"version": 1, "unlearned": 1}


def test_an_unlearned_pair_can_be_learned_again(service: LocalService) -> None:
    unlearn(service, pair(QUERY, "boots"))
    learn(service, pair(QUERY, "boots"))
    assert QUERY in evidence(service, QUERY)["boots"]
    assert clicked(service, "boots")["newest"] == [QUERY]


def test_an_unknown_label_refuses_all_unless_it_is_skipped(service: LocalService) -> None:
    instances = [pair(QUERY, "boots", "gone"), *(pair(f"q {n}", "tent") for n in range(9))]
    problem = assert_problem(unlearn(service, *instances), 422, field="instances.0.labels.1")
    assert "gone" in problem["errors"][0]["message"]
    assert service.get("/info").json()["version"] == 0
    answer = unlearn(service, *instances, unknown="skip").json()
    left_out = [{"instance": 0, "labels": ["gone"]}]
    assert answer == {"version": 1, "unlearned": 1, "left_out": left_out}


def test_a_repeated_request_gets_the_first_answer(service: LocalService) -> None:
    first = unlearn(service, pair(QUERY, "boots"), key="k")
    assert first.json() == {"version": 1, "unlearned": 1}
    assert unlearn(service, pair(QUERY, "boots"), key="k").json() == first.json()
    assert_problem(unlearn(service, pair(QUERY, "shoes"), key="k"), 409)


@pytest.mark.parametrize(
    ("instance", "field"),
    [
        (pair("", "boots"), "instances.0.query"),
        (pair(QUERY), "instances.0.labels"),
        (pair(QUERY, "boots", weight=1.0), "instances.0.weight"),
    ],
)
def test_wrong_pairs_are_refused(
    service: LocalService, instance: dict[str, Any], field: str
) -> None:
    assert_problem(unlearn(service, instance), 422, field=field)


def test_a_body_is_required(service: LocalService) -> None:
    headers = {"content-type": "application/json"}
    assert_problem(service.request("DELETE", "/instances", headers=headers), 400)
    assert_problem(service.request("DELETE", "/instances"), 415)
    refused = service.request("PUT", "/instances")
    assert (refused.status_code, refused.headers["allow"]) == (405, "DELETE, POST")


# Taking back -----------------------------------------------------------------------------


@pytest.mark.parametrize("posted", [{"negative": True}, {"weight": 5.0}, {}])
def test_what_was_posted_is_taken_back_and_training_stays(
    service: LocalService, posted: dict[str, Any]
) -> None:
    def answer() -> Any:
        asked = {"queries": [QUERY, "trail boots"], "top_k": 100, "depth": 100, "explain": True}
        return service.post("/predict", asked).json()["results"]

    axe = {"id": "axe", "text": "ice axe", "queries": [QUERY]}
    service.post("/labels", {"labels": [axe]})
    before = answer()
    learn(service, pair(QUERY, "boots", "axe", "tent", **posted))
    assert answer() != before
    for unlearned in (3, 0):  # a client may repeat a request whose answer it missed
        taken = take_back(service, pair(QUERY, "boots", "axe", "tent", "stove"))
        assert taken.json() == {"version": 3, "unlearned": unlearned}
        assert answer() == before
    assert service.get("/labels/axe").json()["queries"] == [QUERY]
    assert unlearn(service, pair(QUERY, "boots", "axe")).json()["unlearned"] == 2
    assert QUERY not in evidence(service, QUERY)["boots"]


# Negative pairs --------------------------------------------------------------------------


def test_a_negative_pair_is_a_vote_against_a_label(serve: Callable[..., LocalService]) -> None:
    service = serve()
    answer = learn(service, pair(QUERY, "lamp", negative=True, weight=0.5), pair(QUERY, "tent"))
    assert answer.json() == {"version": 2, "accepted": 2}
    assert clicked(service, "lamp") == {"total": 1, "newest": [QUERY], "weights": {QUERY: -0.5}}
    assert "weights" not in clicked(service, "tent")
    service.engine.close()
    service = serve()
    assert clicked(service, "lamp")["weights"] == {QUERY: -0.5}


def test_the_last_click_counts_and_negative_pairs_are_unlearned(service: LocalService) -> None:
    learn(service, pair(QUERY, "lamp", negative=True))
    assert learn(service, pair(QUERY, "lamp", negative=True)).json()["version"] == 1
    assert clicked(service, "lamp")["weights"] == {QUERY: -1.0}
    assert learn(service, pair(QUERY, "lamp")).json()["version"] == 2
    assert "weights" not in clicked(service, "lamp")
    learn(service, pair(QUERY, "lamp", negative=True, weight=2))
    assert take_back(service, pair(QUERY, "lamp")).json() == {"version": 4, "unlearned": 1}
    assert clicked(service, "lamp")["total"] == 0


def test_a_negative_pair_lowers_its_label_for_like_queries(service: LocalService) -> None:
    def scores() -> dict[str, float]:
        asked = {"queries": ["footwear for the trail"], "top_k": 100, "depth": 100}
        [result] = service.post("/predict", asked).json()["results"]
        return {keyword["id"]: keyword["score"] for keyword in result["keywords"]}

    before = scores()
    learn(service, pair(QUERY, "boots", negative=True, weight=0.2))
    after = scores()
    assert after["boots"] / after["shoes"] < before["boots"] / before["shoes"]


def test_evidence_shows_what_a_negative_pair_takes_away(service: LocalService) -> None:
    learn(service, pair("light for a camp", "lamp", negative=True, weight=0.1))
    asked = {"queries": ["light for a tent"], "top_k": 100, "depth": 100, "explain": True}
    [result] = service.post("/predict", asked).json()["results"]
    [lamp] = [keyword for keyword in result["keywords"] if keyword["id"] == "lamp"]
    weights = {row["text"]: row["weight"] for row in lamp["evidence"]}
    assert weights["light for a camp"] < 0
    assert lamp["score"] == pytest.approx(sum(weights.values()))


def test_a_request_of_an_older_client_is_still_the_same(service: LocalService) -> None:
    """The default of `negative` does not count for an idempotency key."""
    headers = {"Idempotency-Key": "k"}
    first = learn(service, pair(QUERY, "lamp"), headers=headers).json()
    again = learn(service, pair(QUERY, "lamp", negative=False), headers=headers)
    assert again.json() == first
    other = learn(service, pair(QUERY, "lamp", negative=True), headers=headers)
    assert_problem(other, 409)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"weight": -1.0}, "instances.0.weight"),
        ({"negative": True, "weight": 0}, "instances.0.weight"),
        ({"negative": 1}, "instances.0.negative"),
    ],
)
def test_a_sign_is_only_given_by_negative(
    service: LocalService, more: dict[str, Any], field: str
) -> None:
    assert_problem(learn(service, pair(QUERY, "lamp", **more)), 422, field=field)


# Counted clicks --------------------------------------------------------------------------


def test_counted_clicks_add_up_and_survive_a_restart(serve: Callable[..., LocalService]) -> None:
    service = serve()
    for count in (3, 6):
        learn(service, pair("rowing", "tent", clicks=count)).raise_for_status()
    learn(service, pair("rowing", "lamp", clicks=1)).raise_for_status()
    for _ in range(2):
        weights = [clicked(service, one)["weights"]["rowing"] for one in ("tent", "lamp")]
        assert weights == pytest.approx([1.8, 0.2])
        service.engine.close()
        service = serve()
    assert take_back(service, pair("rowing", "tent", "lamp")).json()["unlearned"] == 2
    assert clicked(service, "tent")["total"] == 0


@pytest.mark.parametrize(
    "wrong", [{"clicks": 0}, {"clicks": -1}, {"clicks": 1e10}, {"clicks": "1"}]
)
def test_wrong_counts_are_refused(service: LocalService, wrong: dict[str, Any]) -> None:
    assert_problem(learn(service, pair(QUERY, "lamp", **wrong)), 422, field="instances.0.clicks")


@pytest.mark.parametrize("other", [{"weight": 2.0}, {"negative": True}])
def test_a_count_is_given_alone(service: LocalService, other: dict[str, Any]) -> None:
    refused = learn(service, pair(QUERY, "lamp", clicks=1, **other))
    problem = assert_problem(refused, 422)
    assert "`clicks` cannot be given together" in problem["errors"][0]["message"]
