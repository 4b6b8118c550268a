"""Codes and match types over HTTP, from the post of a label on, after a restart and a snapshot."""

import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.http.predictions import PredictAnswer
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service

CODES = 300
SPELLINGS: tuple[Callable[[str], str], ...] = (
    str,
    str.lower,
    lambda code: code.replace("-", ""),
    lambda code: code.replace("-", "").lower(),
    lambda code: code.replace("-", " ").lower(),
)


def keywords(service: LocalService, query: str, **options: Any) -> list[dict[str, Any]]:
    answer = service.post("/predict", {"queries": [query], **options})
    assert answer.status_code == 200, answer.text
    assert_answer(answer.json(), PredictAnswer)
    [result] = answer.json()["results"]
    return result["keywords"]


def assert_found_by_code(service: LocalService, codes: list[str], **options: Any) -> None:
    asked = [spelling(code) for code in codes for spelling in SPELLINGS]
    for start in range(0, len(asked), 50):
        body = {"queries": asked[start : start + 50], "top_k": 1, **options}
        results = service.post("/predict", body).json()["results"]
        found = [result["keywords"][0]["id"] for result in results]
        expected = [query.upper().replace(" ", "").replace("-", "") for query in body["queries"]]
        assert [one.replace("-", "") for one in found] == expected


def test_a_label_is_found_by_its_code_alone(words_bundle: Path, tmp_path: Path) -> None:
    chance = random.Random(0)
    drawn = {
        f"{''.join(chance.choices(string.ascii_uppercase, k=2))}-{chance.randrange(1000, 10000)}"
        for _ in range(CODES)
    }
    codes, places = sorted(drawn), (words_bundle, tmp_path / "state")
    with local_service(*places, bundles=tmp_path) as service:
        labels = [{"id": code, "text": f"acme {code} drill"} for code in codes]
        version = service.post("/labels", {"labels": labels}).json()["version"]
        assert_found_by_code(service, codes, min_version=version)
        sample = codes[::7]
        before = [keywords(service, code) for code in sample]
        assert service.post("/admin/snapshot", {"bundle": "next"}).status_code == 200
        assert service.post("/admin/reload", {"bundle": "next"}).status_code == 200
        assert_found_by_code(service, sample)
        again = [keywords(service, code) for code in sample]
        assert [[one["id"] for one in each[:1]] for each in again] == [
            [one["id"] for one in each[:1]] for each in before
        ]
    with local_service(*places, bundles=tmp_path) as service:
        assert_found_by_code(service, sample)


def test_keywords_say_how_they_match(words_bundle: Path, tmp_path: Path) -> None:
    with local_service(words_bundle, tmp_path / "state") as service:
        found = {one["id"]: one["match"] for one in keywords(service, "Camping-Tent!")}
        assert found.pop("tent") == "exact"
        assert set(found.values()) <= {"broad"}
        found = {one["id"]: one["match"] for one in keywords(service, "a cheap camping tent")}
        assert found["tent"] == "phrase"


@pytest.mark.parametrize("spelling", ["off", "auto"])
def test_only_keywords_that_match_as_asked_are_answered(
    words_bundle: Path, tmp_path: Path, spelling: str
) -> None:
    with local_service(words_bundle, tmp_path / "state") as service:
        asked = {"spelling": spelling, "depth": 1}
        labels = [{"id": f"tent {place}", "text": "tent"} for place in range(30)]
        labels.append({"id": "reversed", "text": "tent camping"})
        version = service.post("/labels", {"labels": labels}).json()["version"]
        asked["min_version"] = version
        query = "camping tent with lamp"
        phrases = keywords(service, query, match=["exact", "phrase"], top_k=50, **asked)
        assert {one["id"] for one in phrases} == {"tent", *(f"tent {n}" for n in range(30))}
        assert {one["match"] for one in phrases} == {"phrase"}
        assert keywords(service, query, match=["exact"], **asked) == []
        exact = keywords(service, "TENT", match=["exact"], top_k=50, **asked)
        assert {one["id"] for one in exact} == {f"tent {n}" for n in range(30)}
        broad = keywords(service, query, match=["broad"], top_k=50, memorization=0.5)
        assert broad and {one["match"] for one in broad} == {"broad"}
        every = keywords(service, query, match=["broad", "phrase", "exact"], top_k=5)
        assert every == keywords(service, query, top_k=5)


@pytest.mark.parametrize("wrong", ["exact", ["exakt"], [], [None], [["exact"]]])
def test_another_match_is_refused(reader: LocalService, wrong: object) -> None:
    answer = reader.post("/predict", {"queries": ["tent"], "match": wrong})
    assert assert_problem(answer, 422)["errors"][0]["field"].startswith("match")


def test_diversity_puts_keywords_like_better_ones_behind(
    words_bundle: Path, tmp_path: Path
) -> None:
    with local_service(words_bundle, tmp_path / "state") as service:
        labels = [{"id": f"tent {place}", "text": "camping tents"} for place in range(5)]
        version = service.post("/labels", {"labels": labels}).json()["version"]
        asked = {"top_k": 8, "min_version": version}
        plain = keywords(service, "camping tents", **asked)
        assert [one["text"] for one in plain[:5]] == ["camping tents"] * 5
        assert keywords(service, "camping tents", diversity=0, **asked) == plain
        diverse = keywords(service, "camping tents", diversity=0.9, **asked)
        assert len(diverse) == len(plain)
        assert diverse[0] == plain[0]
        assert [one["text"] for one in diverse[:3]].count("camping tents") == 1
        scores = {one["id"]: one["score"] for one in plain}
        assert all(scores.get(one["id"], one["score"]) == one["score"] for one in diverse)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, "much", None])
def test_another_diversity_is_refused(reader: LocalService, wrong: object) -> None:
    answer = reader.post("/predict", {"queries": ["tent"], "diversity": wrong})
    assert assert_problem(answer, 422)["errors"][0]["field"] == "diversity"
