"""The body of POST /items."""

from typing import Any

from pydantic import Field, create_model, field_validator

from service.core.types import NewItem
from service.http.request_models.labels import normalised
from service.http.request_models.texts import StrictModel, refuse_repeated
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
        refuse_repeated((item.to_item().id for item in items), what="item")
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
