"""Misspelled queries over HTTP: read by the words of the memory, as it is at each version."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle
from service.http.predictions import PredictAnswer
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service
from tests.support.tiny.bundles import write_document


def ask(service: LocalService, query: str, **options: Any) -> dict[str, Any]:
    body = {"queries": [query], "spelling": "auto", **options}
    answer = service.post("/predict", body)
    assert answer.status_code == 200, answer.text
    assert_answer(answer.json(), PredictAnswer)
    [result] = answer.json()["results"]
    return result


def keywords(result: dict[str, Any]) -> list[dict[str, Any]]:
    return result["keywords"]


@pytest.mark.parametrize(
    ("query", "searched"),
    [
        ("camping tnet", "camping tent"),
        ("runing shoes", "running shoes"),
        ("head lmap", "head lamp"),
        ("runningshoes", "running shoes"),
    ],
)
def test_a_misspelled_query_is_answered_as_the_right_one(
    reader: LocalService, query: str, searched: str
) -> None:
    right, wrong = ask(reader, searched), ask(reader, query)
    assert "searched" not in right
    assert (wrong["query"], wrong["searched"]) == (query, searched)
    assert keywords(wrong) == keywords(right)
    assert "searched" not in ask(reader, query, spelling="off")


def test_queries_of_one_request_are_read_each_for_itself(reader: LocalService) -> None:
    queries = ["camping tnet", "warm boots", "head lmap", "tnet"]
    body = {"queries": queries, "spelling": "auto", "top_k": 3}
    results = reader.post("/predict", body).json()["results"]
    assert [result["query"] for result in results] == queries
    searched = [result.get("searched") for result in results]
    assert searched == ["camping tent", None, "head lamp", "tent"]
    assert results == [ask(reader, query, top_k=3) for query in queries]


def test_explain_says_why(reader: LocalService) -> None:
    result = ask(reader, "Camping TNET!", explain=True)
    assert result["searched"] == "Camping tent!"
    assert result["corrections"] == [{"typed": "tnet", "read": "tent", "rows": 2}]
    assert "corrections" not in ask(reader, "camping tent", explain=True)
    assert "corrections" not in ask(reader, "camping tnet")


def test_corrected_queries_are_counted(service: LocalService) -> None:
    for query in ("camping tnet", "camping tent", "head lmap"):
        ask(service, query)
    ask(service, "camping tnet", spelling="off")
    assert "keymatch_corrected_queries_total 2.0" in service.get("/metrics").text


def test_posted_words_correct_the_next_query_until_they_are_deleted(
    service: LocalService,
) -> None:
    typed = "hoverbord"
    assert "searched" not in ask(service, typed)
    label = {"id": "hover", "text": "hoverboard", "queries": ["levitation scooter"]}
    version = service.post("/labels", {"labels": [label]}).json()["version"]
    found = ask(service, typed, min_version=version)
    assert (found["searched"], keywords(found)[0]["id"]) == ("hoverboard", "hover")
    assert ask(service, "levitaton")["searched"] == "levitation"
    service.post("/labels", {"labels": [{**label, "text": "jetpack", "queries": []}]})
    assert "searched" not in ask(service, typed)
    assert ask(service, "jetpak")["searched"] == "jetpack"
    service.request("DELETE", "/labels/hover")
    assert "searched" not in ask(service, "jetpak")


def test_words_are_there_after_a_restart_and_in_a_snapshot(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    places = tiny_bundle_folder, tmp_path / "state"
    with local_service(*places, bundles=tmp_path) as service:
        service.post("/labels", {"labels": [{"text": "hoverboard"}, {"text": "jetpack"}]})
        service.request("DELETE", "/labels/jetpack")
        before = ask(service, "hoverbord")
        assert service.post("/admin/snapshot", {"bundle": "next"}).status_code == 200
        assert service.post("/admin/reload", {"bundle": "next"}).status_code == 200
        assert ask(service, "hoverbord") == before
    with local_service(*places, bundles=tmp_path) as service:
        assert ask(service, "hoverbord") == before
        assert "searched" not in ask(service, "jetpak")


def test_the_default_is_the_bundles(
    make_spelling_bundle: Callable[[str], Path], tmp_path: Path
) -> None:
    for default, searched in (("auto", "camping tent"), ("off", None)):
        folder = make_spelling_bundle(default)
        with local_service(folder, tmp_path / default) as service:
            [result] = service.post("/predict", {"queries": ["camping tnet"]}).json()["results"]
            assert result.get("searched") == searched
            assert service.get("/info").json()["bundle"]["spelling"] == default


@pytest.fixture
def make_spelling_bundle(make_bundle: Callable[..., Path]) -> Callable[[str], Path]:
    def make(spelling: str) -> Path:
        folder = make_bundle(name=spelling)
        document = manifest.as_document(open_bundle(folder).manifest)
        write_document(folder, {**document, "spelling": spelling})
        return folder

    return make


@pytest.mark.parametrize("wrong", ["on", "", True, None, ["auto"]])
def test_another_value_is_refused(reader: LocalService, wrong: object) -> None:
    answer = reader.post("/predict", {"queries": ["tent"], "spelling": wrong})
    if wrong is None:  # the same as leaving it out
        assert answer.status_code == 200
        return
    assert assert_problem(answer, 422)["errors"][0]["field"] == "spelling"


def test_odd_queries_are_answered(reader: LocalService) -> None:
    for query in ("tnet " * 400, "x" * 1000, "日本語テント", "🏕️", "-- !", "a\u0301" * 50):
        assert ask(reader, query)["query"] == query.strip()
