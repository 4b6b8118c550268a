"""Every exception is answered with the right status and title, and without internals."""

import orjson
import pytest

from service.core import errors
from service.core.errors import KeymatchError
from service.http import problems

SAMPLES: list[tuple[KeymatchError, int, str | None]] = [
    (errors.MalformedHttp("m"), 400, "refused"),
    (errors.ForeignOrigin("m"), 403, "refused"),
    (errors.UnknownHost("m"), 421, "refused"),
    (errors.HeaderTooLarge("m"), 431, "refused"),
    (errors.TooSlow("m"), 408, "slow"),
    (errors.TooManyConnections("m"), 503, "connections"),
    (errors.MalformedRequest("m"), 400, "refused"),
    (errors.Unauthenticated("m"), 401, "refused"),
    (errors.Forbidden("m"), 403, "refused"),
    (errors.UnknownLabel("m", field="id"), 404, "invalid"),
    (errors.BodyTooLarge("m"), 413, "refused"),
    (errors.UnsupportedMedia("m"), 415, "refused"),
    (errors.InvalidInput("m", field="top_k"), 422, "invalid"),
    (errors.OtherData("m"), 422, "invalid"),
    (errors.Overloaded("m", retry_after=3), 429, "queue_full"),
    (errors.DelayExceeded("m", retry_after=3), 429, "overloaded"),
    (errors.ClientLeft("m"), 499, "disconnected"),
    (errors.NotReady("m"), 503, "not_ready"),
    (errors.ShardsUnavailable("m"), 503, "shards"),
    (errors.LogError("m"), 503, None),
    (errors.LogCorrupt("m"), 503, None),
    (errors.DeadlineExceeded("m"), 504, "deadline"),
    (errors.MemoryFull("m"), 507, "memory_full"),
    (errors.KeyReused("m"), 409, None),
    (errors.Busy("m"), 409, None),
    (errors.BundleMissing("m"), 422, None),
    (errors.BundleAltered("m"), 422, None),
    (errors.SealError("m"), 503, None),
    (errors.ParityError("m"), 500, None),
]


@pytest.mark.parametrize(("error", "status", "reason"), SAMPLES, ids=lambda x: type(x).__name__)
def test_every_error_has_its_status_and_reason(
    error: KeymatchError, status: int, reason: str | None
) -> None:
    answer = problems.from_error(error)
    assert answer.status_code == status
    assert answer.media_type == "application/problem+json"
    document = orjson.loads(answer.body)
    assert document["status"] == status
    assert document["type"] == "urn:keymatch:problem:" + document["title"].lower().replace(" ", "-")
    assert problems.reason(error) == reason


def test_messages_for_operators_are_not_sent() -> None:
    for error in (errors.LogError("/srv: disk full"), errors.BundleAltered("/srv/keys.npy")):
        assert b"/srv" not in problems.from_error(error).body
