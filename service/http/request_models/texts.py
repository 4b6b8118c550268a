"""What all requests share: strict models, texts neither blank nor too long, ids that differ."""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from service.core.errors import echoed
from service.settings import Limits


class StrictModel(BaseModel):
    """A request body or query string."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def refuse_repeated(ids: Iterable[str], *, what: str) -> None:
    """Raise `ValueError` for the first id of a request that stands there twice."""
    seen: set[str] = set()
    for place, given_id in enumerate(ids):
        if given_id in seen:
            raise ValueError(f"{what} {place} repeats the id {echoed(given_id)}")
        seen.add(given_id)


def text_type(limits: Limits) -> Any:
    """A string of a query, a label's text or an id: trimmed, not blank, not too long."""
    return Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1, max_length=limits.query_characters),
        AfterValidator(_not_blank),
    ]


def _not_blank(text: str) -> str:
    """Refuse U+001C to U+001F, white space for Python alone: the label's id would be empty."""
    if not text.strip():
        raise ValueError("consists of white space only")
    return text
