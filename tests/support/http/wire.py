"""A TCP proxy that lets a test disturb a connection."""

import socket
import threading

import sqlalchemy as sa


class Wire:
    """Forwards connections to a server until a test cuts them or makes them hang.

    While `open` is not set, nothing is forwarded, as if the server hung.
    """

    def __init__(self, url: sa.URL) -> None:
        self._server = (url.host or "127.0.0.1", url.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.open = threading.Event()
        self.open.set()
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self) -> None:
        """Break all connections; new ones are still accepted."""
        for connected in self._sockets[1:]:
            _shut(connected)

    def close(self) -> None:
        self.open.set()
        for each in self._sockets:
            _shut(each)
        for thread in self._threads:
            thread.join(10)
        for each in self._sockets:
            each.close()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
            except OSError:
                return
            self._sockets += [client, server]
            self._start(self._forward, client, server)
            self._start(self._forward, server, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while content := source.recv(65536):
                self.open.wait()
                target.sendall(content)
        except OSError:
            pass
        _shut(target)


def _shut(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:  # already disconnected
        pass
