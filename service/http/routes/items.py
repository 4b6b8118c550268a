"""/items: create, replace, list, show and delete what queries can attend to."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from service.core.errors import NotInBundle, UnknownItem, echoed
from service.core.items.item_memory import ItemMemory
from service.core.memory.view import View
from service.engine.writing.item_operations import PutItems, RemoveItem
from service.http.answers import Version, VersionAnswer
from service.http.endpoint import Call, Endpoint
from service.http.request_models.items import ItemsBody
from service.http.request_models.labels import Page
from service.http.routes.dependencies import RouteDependencies

_ITEM_PATH = "/items/{item_id:label_id}"
_PATH_PARAMETERS = {"item_id": "The item's id, percent-encoded; it may hold slashes."}


class ItemStatus(TypedDict):
    """What the service did with one posted item."""

    id: Annotated[str, Field(description="As posted; without one, made from the text.")]
    status: Annotated[str, Field(description="`created`, `updated` or `unchanged`.")]


class ItemsAnswer(TypedDict):
    """The answer of POST /items. The items are on disk, and attended to from `version` on."""

    version: Version
    items: Annotated[
        list[ItemStatus], Field(description="One for each item, in the order of the request.")
    ]


class ItemAnswer(TypedDict):
    """An item of the item memory."""

    id: str
    text: str


class ItemPage(TypedDict):
    """A page of the items, the bundle's and the posted ones, in order of id."""

    version: Version
    items: list[ItemAnswer]
    next: Annotated[
        str | None, Field(description="`after` of the next page; null on the last page.")
    ]


class ItemRoutes:
    """Reads and writes the items of a bundle with an item memory."""

    def __init__(self, dependencies: RouteDependencies) -> None:
        self._engine, self._models = dependencies.engine, dependencies.models

    def endpoints(self) -> list[Endpoint[Any]]:
        """The declared routes."""
        return [self._put(), self._list(), self._get(), self._delete()]

    def _put(self) -> Endpoint[ItemsBody]:
        return Endpoint(
            method="POST",
            path="/items",
            summary="Create or replace items that queries can attend to",
            handler=self.put_items,
            scope="write",
            body=self._models.items,
            idempotent=True,
            answer=ItemsAnswer,
            refusals=(429, 503, 504, 507),
        )

    def _list(self) -> Endpoint[Page]:
        return Endpoint(
            method="GET",
            path="/items",
            summary="List all items",
            handler=self.list_items,
            scope="read",
            query=self._models.page,
            answer=ItemPage,
            refusals=(503,),
        )

    def _get(self) -> Endpoint[None]:
        return Endpoint(
            method="GET",
            path=_ITEM_PATH,
            summary="Show one item",
            handler=self.get_item,
            scope="read",
            path_parameters=_PATH_PARAMETERS,
            answer=ItemAnswer,
            refusals=(404, 422, 503),
        )

    def _delete(self) -> Endpoint[None]:
        return Endpoint(
            method="DELETE",
            path=_ITEM_PATH,
            summary="Delete one item",
            handler=self.delete_item,
            scope="write",
            path_parameters=_PATH_PARAMETERS,
            idempotent=True,
            answer=VersionAnswer,
            refusals=(404, 429, 503, 504),
        )

    async def put_items(self, call: Call[ItemsBody]) -> ItemsAnswer:
        """Write all items of a request, or none."""
        _items_of(self._engine.view)
        new_items = tuple(body.to_item() for body in call.input.items)
        written = await self._engine.write(PutItems(new_items=new_items), request=call.idempotency)
        return {
            "version": written.version,
            "items": [{"id": item.id, "status": item.status} for item in written.labels],
        }

    async def list_items(self, call: Call[Page]) -> ItemPage:
        """One page of the items."""
        page, view = call.input, self._engine.view
        memory = _items_of(view)
        # In a thread: it sorts all ids.
        items = await asyncio.to_thread(memory.page, after=page.after, size=page.limit + 1)
        shown = items[: page.limit]
        return {
            "version": view.version,
            "items": [{"id": item.id, "text": item.text} for item in shown],
            "next": shown[-1].id if len(items) > len(shown) else None,
        }

    async def get_item(self, call: Call[None]) -> ItemAnswer:
        """An item of the bundle or a posted one."""
        item_id, memory = _item_id(call), _items_of(self._engine.view)
        place = memory.find(item_id)
        if place is None:
            raise UnknownItem(f"no item has the id {echoed(item_id)}", field="id")
        return {"id": item_id, "text": memory.text_at(place)}

    async def delete_item(self, call: Call[None]) -> VersionAnswer:
        """Remove an item, so that no query attends to it any more."""
        written = await self._engine.write(RemoveItem(id=_item_id(call)), request=call.idempotency)
        return {"version": written.version}


def _items_of(view: View) -> ItemMemory:
    if view.items is None:
        raise NotInBundle("item memory", field="items")
    return view.items


def _item_id(call: Call[Any]) -> str:
    item_id: str = call.request.path_params["item_id"]
    return item_id
