"""The digest of a request depends on what it says, not on how large it is or how it is written."""

import hashlib

import orjson
import pytest
from starlette.requests import Request

from service.http.bounded_model import BoundedModel
from service.http.idempotency import request_key
from service.http.request_models import RequestModels
from service.settings import Limits

MODELS = RequestModels(Limits())
REQUEST = Request({"type": "http", "path": "/labels", "headers": [(b"idempotency-key", b"k")]})


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
