"""A body with more values than its model can accept is refused without being parsed."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.errors import InvalidInput
from service.http.large.body_values import FEW, MostValues, most_values
from service.http.request_models import RequestModels
from service.settings import Limits

MODELS = RequestModels(Limits())
texts = st.text(alphabet='a\\"[]{},: \n', max_size=8)
documents = st.recursive(
    st.integers(-9, 9) | texts | st.none(),
    lambda children: st.lists(children, max_size=5) | st.dictionaries(texts, children, max_size=5),
    max_leaves=30,
)


def count(document: object) -> tuple[int, int]:
    """The marks of values and of names, by a slow and obvious walk."""
    if isinstance(document, list | dict):
        inner = document.values() if isinstance(document, dict) else document
        below = [count(value) for value in inner]
        values = 1 + max(0, len(document) - 1) + sum(values for values, _ in below)
        names = (len(document) if isinstance(document, dict) else 0) + sum(n for _, n in below)
        return values, names
    return 0, 0


def refused(content: bytes, *, values: float, names: float) -> bool:
    try:
        MostValues(values=values, names=names).require(content, what="body")
    except InvalidInput:
        return True
    return False


@given(document=documents)
def test_marks_within_texts_do_not_count(document: object) -> None:
    content, (values, names) = orjson.dumps(document), count(document)
    assert not refused(content, values=values, names=names)
    assert not values or refused(content, values=values - 1, names=names)
    assert not names or refused(content, values=values, names=names - 1)


@given(content=st.binary(max_size=100))
def test_any_bytes_are_counted_or_left_to_the_parser(content: bytes) -> None:
    refused(content, values=1, names=1)


def test_what_a_model_may_have_follows_from_the_limits() -> None:
    limits = Limits(labels=300, label_queries=100, metadata_entries=50)
    most = most_values(RequestModels(limits).labels)
    label = {
        "id": "a",
        "text": "a",
        "queries": ["a"] * 100,
        "metadata": {str(n): "" for n in range(50)},
    }
    values, names = count({"labels": [label] * 300})
    assert values <= most.values <= values * 1.02
    assert names == most.names or most.names == FEW


@pytest.mark.parametrize("model", [MODELS.predict, MODELS.label, MODELS.instances, MODELS.labels])
def test_nothing_short_is_refused(model: type) -> None:
    assert not refused(b"[" + b"0," * (FEW - 2) + b"0]", values=most_values(model).values, names=0)
