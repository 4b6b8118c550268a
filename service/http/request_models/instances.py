"""The body of POST /instances."""

from typing import Any

import numpy as np
from pydantic import Field, create_model

from service.core.types import NewInstance
from service.http.request_models.texts import StrictModel
from service.settings import Limits

LARGEST_WEIGHT = 1_000  # such a click outvotes hundreds of queries that are as similar
SMALLEST_WEIGHT = float(np.finfo(np.float32).tiny)  # a smaller one would be 0 among the values


class InstanceBody(StrictModel):
    """One instance of POST /instances."""

    query: str
    labels: list[str]
    weight: float

    def to_instance(self) -> NewInstance:
        """The instance, without repeated labels."""
        return NewInstance(
            query=self.query,
            labels=tuple(dict.fromkeys(self.labels)),
            weight=max(self.weight, SMALLEST_WEIGHT),
        )


class InstancesBody(StrictModel):
    """The body of POST /instances."""

    instances: list[Any]


def instances_model(text: Any, limits: Limits) -> type[InstancesBody]:
    labels = Field(
        min_length=1,
        max_length=limits.instance_labels,
        description="Ids of the labels that were clicked for the query; all must exist.",
    )
    weight = Field(
        1.0,
        gt=0,
        le=LARGEST_WEIGHT,
        allow_inf_nan=False,
        description="How relevant these labels are to the query: 1 is as relevant as the average"
        " label of a trained query. The last click of a query and a label counts.",
    )
    instance: Any = create_model(
        "Instance",
        __base__=InstanceBody,
        query=(text, Field(description="The query as it was typed.")),
        labels=(list[text], labels),
        weight=(float, weight),
    )
    return create_model(
        "InstancesRequest",
        __base__=InstancesBody,
        instances=(
            list[instance],
            Field(min_length=1, max_length=limits.instances, description="The clicks to learn."),
        ),
    )
