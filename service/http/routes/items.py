"""/items: create, replace, list, show and delete items that queries can attend to."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from typing_extensions import TypedDict

from service.core.changes import DeleteItem
from service.core.errors import NotInBundle, UnknownItem, echoed
from service.core.items.item_memory import ItemMemory
from service.core.memory.view import View
from service.core.page_cursor import PageCursor
from service.engine.writing.operations import DeleteOne, PostItems
from service.http.answers import Version, VersionAnswer
from service.http.endpoint import Call, Endpoint, Routes
from service.http.problems import doc
from service.http.request_models import ItemsBody, Page

_ITEM_PATH = "/items/{item_id:label_id}"


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

    def endpoints(self) -> list[Endpoint[Any]]:
        return [
            Endpoint(
                route="POST /items",
                summary="Create or replace items that queries can attend to",
                handler=self.put_items,
                scope="write",
                for_tenants=False,
                body=self.models.items,
                answer=ItemsAnswer,
            ),
            Endpoint(
                route="GET /items",
                summary="List all items",
                handler=self.list_items,
                scope="read",
                for_tenants=False,
                query=self.models.page,
                answer=ItemPage,
            ),
            Endpoint(
                route=f"GET {_ITEM_PATH}",
                summary="Show one item",
                handler=self.get_item,
                scope="read",
                for_tenants=False,
                answer=ItemAnswer,
            ),
            Endpoint(
                route=f"DELETE {_ITEM_PATH}",
                summary="Delete one item",
                handler=self.delete_item,
                scope="write",
                for_tenants=False,
                answer=VersionAnswer,
            ),
        ]

    async def put_items(self, call: Call[ItemsBody]) -> ItemsAnswer:
        """Write all items of a request, or none."""
        _items_of(self.engine.view)
        new_items = tuple(body.to_item() for body in call.input.items)
        written = await self.engine.write(PostItems(items=new_items), request=call.idempotency)
        return {
            "version": written.version,
            "items": [{"id": item.id, "status": item.status} for item in written.labels],
        }

    async def list_items(self, call: Call[Page]) -> ItemPage:
        """Return one page of the items."""
        page, view = call.input, self.engine.view
        memory, after = _items_of(view), PageCursor.parse(page.after, field="after")
        # In a thread, because it sorts all ids.
        items = await asyncio.to_thread(memory.page, after=after, size=page.limit + 1)
        shown = items[: page.limit]
        return {
            "version": view.version,
            "items": [{"id": item.id, "text": item.text} for item in shown],
            "next": str(PageCursor.behind(shown[-1].id)) if len(items) > len(shown) else None,
        }

    async def get_item(self, call: Call[None]) -> ItemAnswer:
        """Return an item of the bundle, or a posted one."""
        item_id, memory = call.path_id, _items_of(self.engine.view)
        place = memory.find(item_id)
        if place is None:
            raise UnknownItem(f"no item has the id {echoed(item_id)}", field="id")
        return {"id": item_id, "text": memory.text_at(place)}

    async def delete_item(self, call: Call[None]) -> VersionAnswer:
        """Remove an item; no query attends to it any more."""
        written = await self.engine.write(
            DeleteOne(change=DeleteItem, id=call.path_id), request=call.idempotency
        )
        return {"version": written.version}


def _items_of(view: View) -> ItemMemory:
    if view.items is None:
        raise NotInBundle("item memory", field="items")
    return view.items
