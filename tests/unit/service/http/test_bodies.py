"""Request models take their limits from the settings; a request's digest depends on its content."""

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from time import thread_time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.requests import Request

from service.core import times
from service.core.bundle import label_details
from service.core.bundle.label_details import Details, parse
from service.core.rules import from_document
from service.core.text_identity import identity, readable
from service.http.bounded_model import BoundedModel
from service.http.endpoint import request_key
from service.settings import Limits
from tests.support.http.models import request_models

MODELS = request_models(Limits())
REQUEST = Request(
    {
        "type": "http",
        "method": "POST",
        "path": "/labels",
        "headers": [(b"idempotency-key", b"k")],
    }
)


def test_limits_are_those_of_the_settings() -> None:
    limits = Limits(queries=2, query_characters=5, top_k=3, depth=4, deadline_ms=50)
    model = request_models(limits).predict
    asked = model(queries=["  ab ", "cd"], top_k=3, depth=4, deadline_ms=50)
    assert asked.queries == ["ab", "cd"]
    assert model(queries=["a"]).deadline_ms is None
    for wrong in (
        {"queries": ["a", "b", "c"]},
        {"queries": ["abcdef"]},
        {"queries": ["a"], "top_k": 4},
        {"queries": ["a"], "depth": 5},
        {"queries": ["a"], "deadline_ms": 51},
    ):
        with pytest.raises(ValidationError):
            model(**wrong)


def test_a_label_may_be_forbidden_to_carry_queries_or_metadata() -> None:
    model = request_models(Limits(label_queries=0, metadata_entries=0)).labels
    assert model(labels=[{"text": "a"}])
    for extra in ({"queries": ["q"]}, {"metadata": {"a": "b"}}):
        with pytest.raises(ValidationError):
            model(labels=[{"text": "a", **extra}])


@given(text=st.text(min_size=1, max_size=20))
def test_every_accepted_text_has_an_identity_that_is_an_id(text: str) -> None:
    try:
        [body] = MODELS.labels(labels=[{"text": text}]).labels
    except ValidationError:
        with pytest.raises(ValueError, match=r"visible|control character"):
            readable(text)
        return
    made = identity(body.text)
    assert MODELS.label.model_validate({"text": "a", "id": made}).id == made
    assert MODELS.instances(instances=[{"query": "a", "labels": [made]}])


HIDE = {"hide": ["a"]}


def pin(label: str) -> dict[str, Any]:
    return {"id": label, "position": 1}


def boost(label: str) -> dict[str, Any]:
    return {"labels": [label], "factor": 2.0}


def when(query: str) -> dict[str, Any]:
    return {"query": query, "match": "exact"}


TEXTS: list[tuple[str, Callable[[str], dict[str, Any]]]] = [
    ("predict", lambda text: {"queries": [text]}),
    ("predict", lambda text: {"queries": ["a"], "items": [text]}),
    ("labels", lambda text: {"labels": [{"text": text}]}),
    ("labels", lambda text: {"labels": [{"text": "a", "id": text}]}),
    ("labels", lambda text: {"labels": [{"text": "a", "aliases": [text]}]}),
    ("labels", lambda text: {"labels": [{"text": "a", "queries": [text]}]}),
    ("labels", lambda text: {"labels": [{"text": "a", "metadata": {text: "b"}}]}),
    ("labels", lambda text: {"labels": [{"text": "a", "metadata": {"b": text}}]}),
    ("labels", lambda text: {"labels": [{"text": "a", "metadata": {"b": [text]}}]}),
    ("merge", lambda text: {"text": text}),
    ("merge", lambda text: {"aliases": [text]}),
    ("merge", lambda text: {"queries": [text]}),
    ("merge", lambda text: {"metadata": {"b": text}}),
    ("instances", lambda text: {"instances": [{"query": text, "labels": ["a"]}]}),
    ("instances", lambda text: {"instances": [{"query": "a", "labels": [text]}]}),
    ("unlearn", lambda text: {"instances": [{"query": text, "labels": ["a"]}]}),
    ("label_page", lambda text: {"text": text}),
    ("items", lambda text: {"items": [{"text": text}]}),
    ("items", lambda text: {"items": [{"text": "a", "id": text}]}),
    ("rules", lambda text: {"rules": [{"id": text, "then": {"hide": ["a"]}}]}),
    ("rules", lambda text: {"rules": [{"id": "a", "then": {"hide": [text]}}]}),
    ("rules", lambda text: {"rules": [{"id": "a", "then": {"boost": boost(text)}}]}),
    ("rules", lambda text: {"rules": [{"id": "a", "then": {"pin": [pin(text)]}}]}),
    ("rules", lambda text: {"rules": [{"id": "a", "then": HIDE, "when": when(text)}]}),
]


@pytest.mark.parametrize(("name", "body"), TEXTS)
def test_no_text_or_id_has_control_characters(
    name: str, body: Callable[[str], dict[str, Any]]
) -> None:
    model = getattr(MODELS, name)
    assert model(**body("a\tb\nc d\u0085e"))
    for control in ("\0", "\x1b", "\x1f", "\x7f", "\x9b"):
        with pytest.raises(ValidationError, match=f"control character U.{ord(control):04X}"):
            model(**body(f"a{control}b"))


@given(
    microseconds=st.integers(times.now() + 3_600 * times.SECOND, times.LATEST),
    minutes=st.integers(-1439, 1439),
)
def test_every_accepted_date_is_shown_as_sent(microseconds: int, minutes: int) -> None:
    zone = timezone(timedelta(minutes=minutes))
    try:
        sent = datetime.fromisoformat(times.shown(microseconds)).astimezone(zone).isoformat()
    except OverflowError:
        return  # not within the years 1 to 9999 there
    label = MODELS.label.model_validate({"text": "a", "expires_at": sent}).to_label()
    later = MODELS.label.model_validate({"text": "a", "starts_at": sent}).to_label()
    [rule] = MODELS.rules(rules=[{"id": "r", "then": {"hide": ["a"]}, "starts_at": sent}]).rules
    document = rule.to_rule(most=1, tenant=None).document()
    kept = from_document(orjson.loads(orjson.dumps(document)))
    dump = label_details.dump(Details(expires_at=label.expires_at))
    for date in (label.expires_at, later.starts_at, kept.starts_at, parse(dump).expires_at):
        assert datetime.fromisoformat(times.shown(date)) == datetime.fromisoformat(sent)
        assert times.shown(date) == times.shown(microseconds)


def test_an_id_made_from_a_text_is_known_under_any_limit_of_texts() -> None:
    models = request_models(Limits(query_characters=20))
    longest = identity("\ufdfa" * 20)
    assert len(longest) > 200
    [body] = models.instances(instances=[{"query": "a", "labels": [longest]}]).instances
    assert body.labels == [longest]


def test_the_event_loop_normalizes_no_line_of_a_stream() -> None:
    """Sorting this text's marks took 8 ms: three streams of such lines blocked everything else."""
    model, slow = MODELS.label, "a" + "\u0344" * 1023 + "\u0316" * 1023
    start = thread_time()
    for _ in range(50):
        assert model.model_validate({"text": slow}).to_label().text == slow
    assert thread_time() - start < 0.1


def test_metadata_has_a_greatest_size_in_bytes_over_all_entries() -> None:
    label = request_models(Limits(metadata_bytes=10)).label
    assert label.model_validate({"text": "a", "metadata": {"ab": "cd", "é": "ef"}})
    with pytest.raises(ValidationError) as error:
        label.model_validate({"text": "a", "metadata": {"ab": "cd", "é": "éé" + "x"}})
    [wrong] = error.value.errors()
    assert wrong["loc"] == ("metadata",)
    assert "has 11 bytes" in wrong["msg"] and "at most 10" in wrong["msg"]
    described = label.model_json_schema()["properties"]["metadata"]["description"]
    assert "at most 10 bytes" in described


def test_a_field_of_a_later_version_counts_unless_it_has_its_default() -> None:
    """A request that a client repeats after an upgrade still has the same digest."""
    click = {"query": "a", "labels": ["b"], "weight": 1.0}
    before = orjson.dumps({"instances": [click]}, option=orjson.OPT_SORT_KEYS)
    digests = []
    for more in ({}, {"unknown": "refuse"}, {"unknown": "skip"}):
        body = BoundedModel(MODELS.instances).validate({"instances": [click], **more})
        key = request_key(REQUEST, body, client="me::::")
        assert key is not None
        digests.append(key.digest)
    assert digests[0] == digests[1] == hashlib.sha256(b"POST /labels\0" + before).hexdigest()
    assert digests[2] != digests[0]


@pytest.mark.parametrize(
    "labels",
    [
        [{"text": "b", "metadata": {"z": "1", "a": "2"}, "queries": ["y", "x"]}],
        [{"text": str(number), "id": f"é{number}"} for number in range(300)],
    ],
)
def test_the_digest_is_that_of_the_whole_sorted_document(labels: list[dict[str, object]]) -> None:
    body = BoundedModel(MODELS.labels).validate({"labels": labels})
    document = body.model_dump()
    for label in document["labels"]:  # later fields do not count with their defaults
        assert (label.pop("starts_at"), label.pop("expires_at")) == (None, None)
        assert (label.pop("boost"), label.pop("aliases")) == (1.0, [])
    whole = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    key = request_key(REQUEST, body, client="me::::")
    assert key is not None
    assert key.key == "me::::k"
    assert key.digest == hashlib.sha256(b"POST /labels\0" + whole).hexdigest()
