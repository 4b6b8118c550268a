"""Answers that are written to a connection that has ended, with uvloop's real sockets."""

import asyncio
import socket

import pytest
import uvloop

from service.server.living_transport import LivingTransport


async def aborted_transport() -> asyncio.Transport:
    """The server's side of a connection that has ended."""
    accepted: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    class Accept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport)  # type: ignore[arg-type]

    server = await asyncio.get_running_loop().create_server(Accept, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        transport = await accepted
        transport.abort()
        await asyncio.sleep(0.01)
        server.close()
        return transport


def test_uvloop_raises_where_a_living_transport_takes_nothing() -> None:
    async def write() -> None:
        transport = await aborted_transport()
        with pytest.raises(RuntimeError, match="closed"):
            transport.write(b"late")
        LivingTransport(transport).write(b"late")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write())


def test_everything_else_is_the_transports() -> None:
    sent: list[bytes] = []

    class Open(asyncio.Transport):
        def write(self, data: object) -> None:
            sent.append(data)  # type: ignore[arg-type]

        def is_closing(self) -> bool:
            return False

        def get_write_buffer_size(self) -> int:
            return 7

    living = LivingTransport(Open())
    living.write(b"answer")
    assert (sent, living.get_write_buffer_size()) == ([b"answer"], 7)
