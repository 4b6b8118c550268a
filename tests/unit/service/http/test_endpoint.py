"""The digest of a request depends only on its content, not on its size or formatting."""

import hashlib

import orjson
import pytest
from starlette.requests import Request

from service.http.bounded_model import BoundedModel
from service.http.endpoint import request_key
from service.http.request_models import RequestModels
from service.settings import Limits

MODELS = RequestModels(Limits())
REQUEST = Request({"type": "http", "path": "/labels", "headers": [(b"idempotency-key", b"k")]})


def test_a_field_of_a_later_version_counts_unless_it_has_its_default() -> None:
    """A request that a client repeats after an upgrade still has the same digest."""
    click = {"query": "a", "labels": ["b"], "weight": 1.0}
    before = orjson.dumps({"instances": [click]}, option=orjson.OPT_SORT_KEYS)
    digests = []
    for more in ({}, {"unknown": "refuse"}, {"unknown": "skip"}):
        body = BoundedModel(MODELS.instances).validate({"instances": [click], **more})
        key = request_key(REQUEST, body, key_name="me")
        assert key is not None
        digests.append(key.digest)
    assert digests[0] == digests[1] == hashlib.sha256(b"/labels\0" + before).hexdigest()
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
    whole = orjson.dumps(body.model_dump(), option=orjson.OPT_SORT_KEYS)
    key = request_key(REQUEST, body, key_name="me")
    assert key is not None
    assert key.key == "me:k"
    assert key.digest == hashlib.sha256(b"/labels\0" + whole).hexdigest()
