"""Answers of /predict are joined from serialized results; too large ones are not built."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from service.core.errors import InvalidInput
from service.core.prediction.answers import result_answer, shown_boost
from service.core.types import Answer, Evidence, Keyword, Prediction, Reading
from service.http.endpoint import PIECE_BYTES, JsonAnswer
from service.http.predictions import SerializedResults, predict_answer

ROW = Evidence(
    kind="instance",
    text="two-person tent",
    similarity=0.7134523391723633,
    weight=0.00123456789012345,
)
LIMIT = 1_000_000


def serialized(answer: Answer, *, explain: bool, limit: int = LIMIT) -> Answer:
    """The answer with serialized results, as the engine returns it."""
    serialize = SerializedResults(explain=explain, limit=limit)
    return replace(answer, predictions=(), serialized=tuple(map(serialize, answer.predictions)))


def answer(*, keywords: int, metadata: dict[str, str]) -> Answer:
    tents = [
        Keyword(
            id=f"tent-{number}",
            text=f"camping tent {number}",
            score=1 / (number + 1),
            novel=False,
            metadata=metadata,
            evidence=(ROW,) * 10,
        )
        for number in range(keywords)
    ]
    return Answer(
        version=3,
        predictions=(
            Prediction(reading=Reading(query="tent", text="tent"), keywords=tuple(tents)),
        ),
        seconds={},
    )


def body(sent: JsonAnswer) -> bytes:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(sent({}, send, send))  # type: ignore[arg-type]
    assert all(len(message["body"]) <= PIECE_BYTES for message in messages[1:])
    assert [message.get("more_body", False) for message in messages[1:-1]] == [True] * (
        len(messages) - 2
    )
    return b"".join(message["body"] for message in messages[1:])


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("queries", [0, 1, 3])
@pytest.mark.parametrize("keywords", [1, 200])
def test_an_answer_is_the_document_of_its_results(
    keywords: int, queries: int, explain: bool
) -> None:
    tents = answer(keywords=keywords, metadata={"brand": "acme"})
    many = replace(tents, predictions=tents.predictions * queries)
    sent = predict_answer(serialized(many, explain=explain), bundle='"b"')
    document = orjson.loads(body(sent))
    results = [result_answer(one, explain=explain) for one in many.predictions]
    assert body(sent) == orjson.dumps({**document, "results": results})
    assert list(document) == ["bundle", "version", "results", "timing_ms"]
    assert (document["bundle"], document["version"]) == ('"b"', 3)
    assert sent.size == len(body(sent))


@pytest.mark.parametrize("explain", [False, True])
def test_the_size_of_an_answer_is_estimated_to_a_fifth(explain: bool) -> None:
    tents = answer(keywords=200, metadata={"brand": "acme" * 50})
    size = predict_answer(serialized(tents, explain=explain), bundle="b").size
    serialized(tents, explain=explain, limit=int(1.2 * size))
    with pytest.raises(InvalidInput, match="fewer keywords") as refused:
        serialized(tents, explain=explain, limit=int(0.8 * size))
    assert refused.value.field == "top_k"


def test_an_answer_is_refused_with_the_first_result_that_is_too_much() -> None:
    fat = answer(keywords=10, metadata={"story": "x" * 40_000})
    serialize = SerializedResults(explain=True, limit=LIMIT)
    for _ in range(2):
        serialize(fat.predictions[0])
    with pytest.raises(InvalidInput, match=r"at least 12\d{5} bytes"):
        serialize(fat.predictions[0])
    serialized(replace(fat, predictions=fat.predictions * 9), explain=False)


@pytest.mark.parametrize("boost", [1.2, 0.9, 900.0, 0.001])
def test_a_boost_that_is_stored_as_fp32_is_shown_as_posted(boost: float) -> None:
    assert shown_boost(float(np.float32(boost))) == boost
