"""The body of POST /instances."""

from typing import Any

from pydantic import Field, create_model

from service.core.types import NewInstance
from service.http.request_models.texts import StrictModel
from service.settings import Limits


class InstanceBody(StrictModel):
    """One instance of POST /instances."""

    query: str
    labels: list[str]

    def to_instance(self) -> NewInstance:
        """The instance, without repeated labels."""
        return NewInstance(query=self.query, labels=tuple(dict.fromkeys(self.labels)))


class InstancesBody(StrictModel):
    """The body of POST /instances."""

    instances: list[Any]


def instances_model(text: Any, limits: Limits) -> type[InstancesBody]:
    labels = Field(
        min_length=1,
        max_length=limits.instance_labels,
        description="Ids of the labels that were clicked for the query; all must exist.",
    )
    instance: Any = create_model(
        "Instance",
        __base__=InstanceBody,
        query=(text, Field(description="The query as it was typed.")),
        labels=(list[text], labels),
    )
    return create_model(
        "InstancesRequest",
        __base__=InstancesBody,
        instances=(
            list[instance],
            Field(min_length=1, max_length=limits.instances, description="The clicks to learn."),
        ),
    )
