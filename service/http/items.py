"""/items: create, replace, list, show and delete items that queries can attend to."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field

from service.core.changes import DeleteItem
from service.core.errors import NotInBundle, UnknownItem, echoed
from service.core.items.item_memory import ItemMemory
from service.core.memory.view import View
from service.core.types import NewItem, TypedDict, doc
from service.engine.writing.operations import PostItems
from service.http.bodies import DEFAULT_ID, Page, StrictModel, Text, distinct, next_page
from service.http.endpoint import Call, Routes, Version, VersionAnswer, route

_ITEM_PATH = "/items/{item_id:label_id}"


class ItemBody(StrictModel):
    """One item of POST /items."""

    id: Text | None = Field(None, description=DEFAULT_ID.format("item"))
    text: Text = Field(description="What the item says, such as the name of a category.")

    def to_item(self) -> NewItem:
        """Return the item. Its id is empty if the request has none; the writer then chooses it."""
        return NewItem(id=self.id or "", text=self.text)


class ItemsRequest(StrictModel):
    """The body of POST /items."""

    items: Annotated[list[ItemBody], *distinct("labels")] = Field(
        description="Items to create or replace, each id at most once."
    )


class ItemStatus(TypedDict):
    """What the service did with one posted item."""

    id: Annotated[str, doc("As posted; without one, that of the item of this text.")]
    status: Annotated[str, doc("`created`, `updated` or `unchanged`.")]


class ItemsAnswer(TypedDict):
    """The answer of POST /items. The items are on disk, and attended to from `version` on."""

    version: Version
    items: Annotated[list[ItemStatus], doc("One for each item, in the order of the request.")]


class ItemAnswer(TypedDict):
    """An item of the item memory."""

    id: str
    text: str


class ItemPage(TypedDict):
    """A page of the bundle's and the posted items, in order of id."""

    version: Version
    items: list[ItemAnswer]
    next: Annotated[str | None, doc("`after` of the next page; null on the last page.")]


class ItemRoutes(Routes):
    """Reads and writes the items of a bundle with an item memory."""

    @route("POST /items", for_tenants=False)
    async def put_items(self, call: Call[ItemsRequest]) -> ItemsAnswer:
        """Create or replace items that queries can attend to."""
        _items_of(self.engine.view)
        new_items = tuple(body.to_item() for body in call.input.items)
        written = await self.engine.write(PostItems(items=new_items), request=call.idempotency)
        return {
            "version": written.version,
            "items": [{"id": item.id, "status": item.status} for item in written.labels],
        }

    @route("GET /items", for_tenants=False)
    async def list_items(self, call: Call[Page]) -> ItemPage:
        """List all items."""
        page, view = call.input, self.engine.view
        memory = _items_of(view)
        # In a thread, because it sorts all ids.
        items = await asyncio.to_thread(memory.page, after=page.cursor, size=page.limit + 1)
        shown = items[: page.limit]
        return {
            "version": view.version,
            "items": [{"id": item.id, "text": item.text} for item in shown],
            "next": next_page(shown, items),
        }

    @route(f"GET {_ITEM_PATH}", for_tenants=False)
    async def get_item(self, call: Call[None]) -> ItemAnswer:
        """Show one item."""
        item_id, memory = call.path_id, _items_of(self.engine.view)
        place = memory.find(item_id)
        if place is None:
            raise UnknownItem(f"no item has the id {echoed(item_id)}", field="id")
        return {"id": item_id, "text": memory.text_at(place)}

    @route(f"DELETE {_ITEM_PATH}", for_tenants=False)
    async def delete_item(self, call: Call[None]) -> VersionAnswer:
        """Delete one item."""
        return await self.delete(call, DeleteItem)


def _items_of(view: View) -> ItemMemory:
    if view.items is None:
        raise NotInBundle("item memory", field="items")
    return view.items
