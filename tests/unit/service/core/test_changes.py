"""A click's weight in the label log is stored only if it is not 1, and checked when it is read."""

import numpy as np
import pytest

from service.core.changes import Posted, PutInstance
from service.core.types import Event, Halves, NewInstance

PLAIN = {"query": "dusk", "labels": ("lamp", "tent")}


def vectors_of(item: Posted) -> Halves:
    return np.ones((1, 4), np.float16)


def read(body: dict[str, object]) -> PutInstance:
    return PutInstance.from_event(Event(sequence=1, kind=PutInstance.kind, body=body), vectors_of)


@pytest.mark.parametrize(
    ("weight", "body"),
    [(1.0, PLAIN), (0.1, PLAIN | {"weight": 0.1}), (7.0, PLAIN | {"weight": 7.0})],
)
def test_a_weight_is_stored_where_it_is_not_one(weight: float, body: dict[str, object]) -> None:
    instance = NewInstance(query="dusk", labels=("lamp", "tent"), weight=weight)
    change = PutInstance(sequence=1, instance=instance, vectors=np.ones((1, 4), np.float16))
    assert list(change.body().items()) == list(body.items())
    assert read(body).instance == instance


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf"), "heavy"])
def test_a_stored_weight_that_is_no_positive_number_is_refused(weight: object) -> None:
    with pytest.raises(ValueError, match=r"weigh|float"):
        read({**PLAIN, "weight": weight})


def test_a_vote_weighs_the_nearest_float32() -> None:
    instance = NewInstance(query="dusk", labels=("lamp",), weight=0.1)
    assert instance.vote_weight == float(np.float32(0.1)) != 0.1
