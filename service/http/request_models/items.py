"""The body of POST /items."""

from typing import Any

from pydantic import Field, create_model, field_validator

from service.core.errors import echoed
from service.core.types import NewItem
from service.http.request_models.labels import normalised
from service.http.request_models.texts import StrictModel
from service.settings import Limits


class ItemBody(StrictModel):
    """One item of POST /items."""

    id: str | None
    text: str

    def to_item(self) -> NewItem:
        """The item; its id is the normalised text where the request has none."""
        return NewItem(id=self.id or normalised(self.text), text=self.text)


class ItemsBody(StrictModel):
    """The body of POST /items."""

    items: list[Any]

    @field_validator("items")
    @classmethod
    def _ids_differ(cls, items: list[ItemBody]) -> list[ItemBody]:
        seen: set[str] = set()
        for place, item in enumerate(items):
            item_id = item.to_item().id
            if item_id in seen:
                raise ValueError(f"item {place} repeats the id {echoed(item_id)}")
            seen.add(item_id)
        return items


def items_model(text: Any, limits: Limits) -> type[ItemsBody]:
    item: Any = create_model(
        "Item",
        __base__=ItemBody,
        id=(
            text | None,
            Field(None, description="Default: the text in NFKC, case-folded, with single spaces."),
        ),
        text=(text, Field(description="What the item says, such as the name of a category.")),
    )
    return create_model(
        "ItemsRequest",
        __base__=ItemsBody,
        items=(
            list[item],
            Field(
                min_length=1,
                max_length=limits.labels,
                description="Items to create or replace, each id at most once.",
            ),
        ),
    )
