"""Who waits for a view is woken by it, from any thread, and given up when the client has left."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.core.errors import ClientLeft
from service.engine.reading.query_request import Client
from service.engine.reading.view_waiters import ViewWaiters


def a_client() -> Client:
    return cast(Client, SimpleNamespace(left=False, on_leave=None))


def leave(client: Any) -> None:
    client.left = True
    client.on_leave()


def test_what_is_reached_already_is_not_waited_for() -> None:
    waiters = ViewWaiters()
    asyncio.run(waiters.wait(lambda: True))
    assert len(waiters) == 0


def test_another_thread_wakes_those_whose_version_is_reached() -> None:
    waiters, version = ViewWaiters(), 0

    async def wait_for(wanted: int) -> int:
        await waiters.wait(lambda: version >= wanted, client=a_client())
        return version

    def publish() -> None:
        nonlocal version
        version += 1
        waiters.notify()

    async def both() -> None:
        first, second = asyncio.create_task(wait_for(1)), asyncio.create_task(wait_for(2))
        await asyncio.sleep(0)
        assert len(waiters) == 2
        await asyncio.to_thread(publish)
        assert await first == 1
        assert not second.done()
        thread = threading.Thread(target=publish)
        thread.start()
        assert await second == 2
        thread.join()
        assert len(waiters) == 0

    asyncio.run(both())


def test_only_those_whose_client_has_left_are_given_up() -> None:
    waiters = ViewWaiters()

    async def two_leave() -> None:
        clients: list[Any] = [a_client(), a_client(), None]
        tasks = [
            asyncio.create_task(waiters.wait(lambda: False, client=client)) for client in clients
        ]
        await asyncio.sleep(0)
        assert len(waiters) == 3
        leave(clients[0])
        with pytest.raises(ClientLeft):
            await asyncio.wait_for(tasks[0], 60)
        assert len(waiters) == 2
        assert clients[0].on_leave is None
        leave(clients[1])
        with pytest.raises(ClientLeft):
            await asyncio.wait_for(tasks[1], 60)
        tasks[2].cancel()
        await asyncio.wait([tasks[2]])
        assert len(waiters) == 0

    asyncio.run(two_leave())
