"""/instances: learn from clicks, and unlearn pairs of queries and labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Annotated, ClassVar, Literal, NotRequired, Self

from annotated_types import MaxLen
from pydantic import AfterValidator, Field, model_validator

from service.core import times
from service.core.label import Weight
from service.core.memory.decay import can_be_now
from service.core.types import NewInstance, TypedDict, doc
from service.engine.writing.operations import PostInstances, UnlearnInstances, Written
from service.http.bodies import KnownId, StrictModel, Text, at_most
from service.http.endpoint import Call, Routes, VersionAnswer, route

LARGEST_COUNT = 1e9  # clicks in one instance


def _past(text: str) -> str:
    """Refuse what is no date, and a time that a click cannot have."""
    at = times.read(text)
    if not can_be_now(at / times.SECOND, now=times.now() / times.SECOND):
        raise ValueError("must be a time since 1970 that has passed")
    return text


class InstanceBody(StrictModel):
    """One instance of POST /instances."""

    later: ClassVar[frozenset[str]] = frozenset({"negative", "at", "clicks"})

    query: Text = Field(description="The query as it was typed.")
    labels: Annotated[list[KnownId], at_most("instance_labels")] = Field(
        min_length=1,
        description="Ids of the labels that were clicked for the query; see `unknown`.",
    )
    weight: Weight = Field(
        1.0,
        description="How relevant these labels are to the query: 1 is as relevant as the average"
        " label of a trained query. The newest click of a query and a label counts.",
    )
    negative: bool = Field(
        False,
        description="Whether these labels are wrong for the query: it then votes against them, with"
        " this `weight`, where it is among the nearest. A missing click never means this.",
    )
    at: Annotated[str, MaxLen(40), AfterValidator(_past)] | None = Field(
        None,
        description="When it was clicked, with a zone, such as 2026-12-01T00:00:00Z. If it is"
        " older than the known click of its pair, it changes nothing. Its weight decays from then"
        " on if the service has the setting `click_half_life`. Default: now if it"
        " has, otherwise never.",
    )

    clicks: float | None = Field(
        None,
        gt=0,
        le=LARGEST_COUNT,
        allow_inf_nan=False,
        description="Instead of `weight`: so many further clicks on each of these labels. They are"
        " added to the earlier ones, and compared with the clicks that the query was trained with.",
    )

    @model_validator(mode="after")
    def _require_one_measure(self) -> Self:
        if self.clicks is not None and (self.negative or self.weight != 1.0):
            raise ValueError("`clicks` cannot be given together with `weight` or `negative`")
        return self

    def to_instance(self) -> NewInstance:
        """Return the instance, without repeated labels; a negative one has a weight below 0."""
        return NewInstance(
            query=self.query,
            labels=tuple(dict.fromkeys(self.labels)),
            weight=-self.weight if self.negative else self.weight,
            at=times.start_of(self.at),
            clicks=self.clicks,
        )


class InstancesRequest(StrictModel):
    """The body of POST /instances."""

    later: ClassVar[frozenset[str]] = frozenset({"unknown"})

    instances: Annotated[list[InstanceBody], at_most("instances")] = Field(
        min_length=1, description="The clicks to learn."
    )
    unknown: Literal["refuse", "skip"] = Field(
        "refuse",
        description="What becomes of labels that do not exist: `refuse` the whole request, or"
        " `skip` them, learn the rest, and list them in the answer.",
    )


class UnlearnedInstance(StrictModel):
    """One instance of DELETE /instances."""

    query: Text = Field(description="The query, exactly as it was learned.")
    labels: Annotated[list[KnownId], at_most("instance_labels")] = Field(
        min_length=1, description="Ids of the labels to unlearn for the query; see `unknown`."
    )

    def to_instance(self) -> NewInstance:
        """Return the query with its labels, each once."""
        return NewInstance(query=self.query, labels=tuple(dict.fromkeys(self.labels)))


class UnlearnRequest(StrictModel):
    """The body of DELETE /instances."""

    instances: Annotated[list[UnlearnedInstance], at_most("instances")] = Field(
        min_length=1, description="The pairs to take back or unlearn."
    )
    trained: bool = Field(
        False,
        description="Whether the pairs are also unlearned from the training data and from the"
        " `queries` of the labels. Without it, exactly what POST /instances learned is taken back.",
    )
    unknown: Literal["refuse", "skip"] = Field(
        "refuse",
        description="What becomes of labels that do not exist: `refuse` the whole request, or"
        " `skip` them, unlearn the rest, and list them in the answer.",
    )


class LeftOutAnswer(TypedDict):
    """The labels of one instance that do not exist."""

    instance: Annotated[int, doc("Place of the instance in the request, from 0.")]
    labels: Annotated[list[str], doc("Their ids.")]


class InstancesAnswer(VersionAnswer):
    """The answer of POST /instances."""

    accepted: Annotated[int, doc("Number of instances that were learned, or were known already.")]
    left_out: NotRequired[
        Annotated[
            list[LeftOutAnswer], doc("What was not learned; present with `unknown` of `skip`.")
        ]
    ]


class UnlearnAnswer(VersionAnswer):
    """The answer of DELETE /instances."""

    unlearned: Annotated[
        int, doc("Number of pairs of a query and a label that were known, and no longer are.")
    ]
    left_out: NotRequired[
        Annotated[list[LeftOutAnswer], doc("Unknown labels; present with `unknown` of `skip`.")]
    ]


def left_out_answer(written: Written, instances: Sequence[NewInstance]) -> list[LeftOutAnswer]:
    """Return the unknown labels of a request's instances, which were skipped."""
    return [
        {
            "instance": place,
            "labels": [instances[place].labels[position] for _, position in positions],
        }
        for place, positions in groupby(written.left_out, key=itemgetter(0))
    ]


class InstanceRoutes(Routes):
    """Learns clicks and unlearns pairs."""

    @route("POST /instances")
    async def put_instances(self, call: Call[InstancesRequest]) -> InstancesAnswer:
        """Learn which labels queries were clicked for."""
        written, left_out = await self._write_instances(call, PostInstances)
        answer: InstancesAnswer = {"version": written.version, "accepted": written.accepted}
        if call.input.unknown == "skip":
            answer["left_out"] = left_out
        return answer

    @route("DELETE /instances")
    async def delete_instances(self, call: Call[UnlearnRequest]) -> UnlearnAnswer:
        """Take back or unlearn that queries lead to labels.

        The query loses the clicks and negative pairs that were posted for these labels, so that
        what was trained counts as before. With `trained`, it also loses what training and the
        labels' `queries` taught. Other labels of the query keep their votes. A pair that is not
        known is no error.
        """
        unlearn = partial(UnlearnInstances, trained=call.input.trained)
        written, left_out = await self._write_instances(call, unlearn)
        answer: UnlearnAnswer = {"version": written.version, "unlearned": written.accepted}
        if call.input.unknown == "skip":
            answer["left_out"] = left_out
        return answer

    async def _write_instances(
        self,
        call: Call[InstancesRequest] | Call[UnlearnRequest],
        operation: Callable[..., PostInstances | UnlearnInstances],
    ) -> tuple[Written, list[LeftOutAnswer]]:
        """Return what was written, and the unknown labels that were skipped."""
        # In a thread for a large body: its instances may have many labels.
        instances = await self.side_thread.run_if(
            call.hold.size, lambda: tuple(body.to_instance() for body in call.input.instances)
        )
        skip = call.input.unknown == "skip"
        write = operation(items=instances, skip_unknown=skip, tenant=call.tenant)
        written = await self.engine.write(write, request=call.idempotency)
        return written, left_out_answer(written, instances)
