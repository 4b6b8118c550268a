"""Signals that one process of a machine passes on to the others, through a Unix socket.

The processes that follow one log agree on a name in Linux's abstract namespace. The process that
binds it is the listener. The others connect to it and wait. When the listener ends, however it
ends, the kernel frees the name and closes the connections, so the others notice at once.

The abstract namespace has no permissions, so both sides check that the other has the same user.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import suppress

PREFIX = "keymatch"  # of all names
_BACKLOG = 4096
_NUMBER = struct.Struct("<q")
_CREDENTIALS = struct.Struct("3i")  # process, user and group, as SO_PEERCRED returns them


class Listener:
    """The one process that passes signals on. Others can connect once `open` was called."""

    def __init__(self, bound: socket.socket | None) -> None:
        """Use a bound socket, or None to pass nothing on."""
        self._socket = bound
        self._others: list[socket.socket] = []

    def open(self) -> None:
        """Let other processes connect."""
        if self._socket is not None:
            self._socket.listen(_BACKLOG)

    def send(self, newest: int) -> None:
        """Send the newest event's number to all connected processes, without waiting for one.

        A process that has not received hundreds of earlier numbers is disconnected.
        """
        if self._socket is None:
            return
        with suppress(OSError):  # nobody else waits, or no file can be opened: they connect later
            while True:
                other, _ = self._socket.accept()
                other.setblocking(False)
                if _same_user(other):
                    self._others.append(other)
                else:
                    other.close()
        for other in tuple(self._others):
            try:
                other.send(_NUMBER.pack(newest))
            except OSError:  # it has ended, or hangs and will join again, and then reads the log
                self._others.remove(other)
                other.close()

    def close(self) -> None:
        """Free the name. The connected processes notice it."""
        for own in (self._socket, *self._others):
            if own is not None:
                own.close()


def claim(name: str) -> Listener | None:
    """Become the listener; returns None if another process is.

    Where there are no such sockets, the process becomes a listener that passes nothing on.
    """
    try:
        own = _socket()
    except (AttributeError, OSError):
        return Listener(None)
    try:
        own.bind(_address(name))
    except OSError as error:
        own.close()
        return None if error.errno == errno.EADDRINUSE else Listener(None)
    return Listener(own)


class Follower:
    """A connection to the listener."""

    def __init__(self, connected: socket.socket) -> None:
        """Use a connected socket."""
        self._socket = connected

    def receive(self, *, seconds: float) -> int | None:
        """Return the newest number that the listener sent, or None after so many seconds.

        Raises `EOFError` if the listener has ended.
        """
        self._socket.settimeout(seconds)
        try:
            message = self._socket.recv(_NUMBER.size)
            self._socket.setblocking(False)
            with suppress(BlockingIOError):
                while later := self._socket.recv(_NUMBER.size):  # the last one replaces the others
                    message = later
        except TimeoutError:
            return None
        except OSError as error:
            raise EOFError from error
        if not message:
            raise EOFError
        return int(_NUMBER.unpack(message)[0])

    def close(self) -> None:
        """Leave the listener."""
        self._socket.close()


def join(name: str) -> Follower | None:
    """Connect to the listener; returns None if it is not open.

    Raises `PermissionError` if it belongs to another user.
    """
    own = _socket()
    try:
        own.setblocking(False)  # a listener that hangs must not hold up others here
        own.connect(_address(name))
        if not _same_user(own):
            raise PermissionError(f"the listener {name} belongs to another user")
    except PermissionError:
        own.close()
        raise
    except OSError:
        own.close()
        return None
    return Follower(own)


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)


def _address(name: str) -> str:
    return f"\0{PREFIX}-{os.geteuid()}-{name}"


def _same_user(connected: socket.socket) -> bool:
    """Whether the process at the other end belongs to this process's user."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())
