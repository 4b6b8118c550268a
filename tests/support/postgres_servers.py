"""PostgreSQL servers of a test's own: a primary, and a standby that follows it."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

BINARIES = Path("/usr/lib/postgresql")
CONFIGURATION = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
wal_level = replica
max_wal_senders = 4
hot_standby = on
fsync = off
"""


@dataclass(frozen=True)
class Server:
    """A server whose data lies in `folder`; other users than root run its programs themselves."""

    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def run(self, program: str, *arguments: str) -> None:
        command = [str(_programs() / program), *arguments]
        if os.geteuid() == 0:  # the server refuses to run as root
            command = ["runuser", "-u", "postgres", "--", *command]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def control(self, action: str, *arguments: str) -> None:
        self.run("pg_ctl", action, "-D", str(self.folder), "-w", "-t", "30", *arguments)

    def start(self) -> None:
        log = str(self.folder.with_suffix(".log"))
        self.control("start", "-l", log, "-o", f"-p {self.port}")

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    def holds_as_much_as(self, primary: "Server") -> bool:
        """Whether this standby has replayed all that the primary has written."""
        [written] = primary.asked("SELECT pg_current_wal_lsn()")
        [held] = self.asked(f"SELECT pg_last_wal_replay_lsn() >= '{written}'")
        return bool(held)

    def asked(self, query: str) -> tuple[object, ...]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(query).fetchone()
        assert row is not None
        return tuple(row)

    def make_readonly(self) -> None:
        """Demote it as a fence does: sessions stay, and none of them can write any more."""
        self.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        self.execute("SELECT pg_reload_conf()")


@contextmanager
def primary_and_standby() -> Iterator[tuple[Server, Server]]:
    """Start both in a temporary folder, and end them; skips if their programs are missing."""
    if _programs() == Path():
        what = f"NOT TESTED: no PostgreSQL server in {BINARIES}"
        pytest.fail(what) if os.environ.get("CI") else pytest.skip(what)
    with TemporaryDirectory() as temporary:  # the server's user cannot enter pytest's folders
        if os.geteuid() == 0:
            shutil.chown(temporary, "postgres")
        yield from _started(Path(temporary))


def _started(folder: Path) -> Iterator[tuple[Server, Server]]:
    primary, standby = (Server(folder / name, _free_port()) for name in ("primary", "standby"))
    primary.run("initdb", "-D", str(primary.folder), "-A", "trust", "-U", "postgres", "-N")
    with (primary.folder / "postgresql.conf").open("a") as file:
        file.write(CONFIGURATION)
    started = []
    try:
        primary.start()
        started.append(primary)
        source, copy = f"host=127.0.0.1 user=postgres port={primary.port}", str(standby.folder)
        primary.run("pg_basebackup", "-R", "-N", "-c", "fast", "-d", source, "-D", copy)
        standby.start()
        started.append(standby)
        yield primary, standby
    finally:
        for server in started:
            server.control("stop", "-m", "immediate")


def _programs() -> Path:
    """Return the folder of the newest installed server's programs, or an empty path."""
    found = [path.parent for path in BINARIES.glob("*/bin/pg_basebackup")]
    return max(found, key=lambda path: int(path.parent.name), default=Path())


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
