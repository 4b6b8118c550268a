"""The body of POST /predict."""

from typing import Any

from pydantic import Field, create_model

from service.http.request_models.texts import StrictModel
from service.settings import Limits


class PredictBody(StrictModel):
    """The body of POST /predict."""

    queries: list[str]
    top_k: int
    memorization: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Weight of the votes of training queries and clicks, against those of the"
        " labels' own texts (the paper's lambda), 0 to 1. Default: the bundle's.",
    )
    depth: int | None
    explain: bool = Field(
        False,
        description="Add to each keyword its metadata and the rows of the memory that voted for it"
        " (`evidence`), and to each query the items that it attended to (`items`), where the bundle"
        " has an item memory.",
    )
    min_version: int = Field(
        0,
        ge=0,
        le=2**63 - 1,
        description="Answer from this memory version or a later one: pass the `version` of a write"
        " to be sure to see it. The request waits for it, at most until its deadline.",
    )
    rerank: bool | None = Field(
        None,
        description="Whether the best keywords are ranked a second time; false for the memory's own"
        " ranking, whose scores are its votes. Default: yes, where the bundle has a second"
        " ranking; true for another bundle is an error.",
    )
    deadline_ms: int | None
    items: list[str] | None


def predict_model(text: Any, limits: Limits) -> type[PredictBody]:
    return create_model(
        "PredictRequest",
        __base__=PredictBody,
        queries=(
            list[text],
            Field(min_length=1, max_length=limits.queries, description="The texts to match."),
        ),
        top_k=(
            int,
            Field(10, ge=1, le=limits.top_k, description="The most keywords for each query."),
        ),
        depth=(
            int | None,
            Field(
                None,
                ge=1,
                le=limits.depth,
                description="How many of the nearest keys vote for each query (the paper's b)."
                " Default: the bundle's.",
            ),
        ),
        deadline_ms=(
            int | None,
            Field(
                None,
                ge=1,
                le=limits.deadline_ms,
                description="Milliseconds after which the request is given up with a 504. Default:"
                f" {limits.default_deadline_ms}, and {limits.default_deadline_query_ms} more for"
                " each further query, or more where a query asks for much.",
            ),
        ),
        items=_items(text, limits),
    )


def _items(text: Any, limits: Limits) -> tuple[Any, Any]:
    """The field `items`: its type and its documentation."""
    return (
        list[text] | None,
        Field(
            None,
            max_length=limits.items,
            description="Ids or texts of the items that all queries attend to; [] for none."
            " Default: the items that are nearest to each query. For a bundle with an item"
            " memory alone.",
        ),
    )
