"""`python -m service`: serve a bundle, or check one."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import uvicorn
from cyclopts import App, Parameter
from rich.console import Console

from service.cli.log import log as log_command
from service.cli.snapshot import snapshot
from service.command_line import run
from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.errors import InvalidConfig, KeymatchError
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.types import PredictOptions
from service.http.app import build_app
from service.http.auth import Access, read_keys, require_keys_beyond_loopback
from service.logs import configure_logs
from service.server.supervisor import serve_in_workers
from service.server.worker import Served
from service.settings import API_KEYS_VARIABLE, STATE_VARIABLE, ServerSettings, load_settings
from service.telemetry import Telemetry

app = App(
    name="service",
    help="Answer queries from a bundle over HTTP, and learn new labels.",
    version=lambda: version("keymatch"),
)
log = logging.getLogger("keymatch")


@app.command
def serve(
    *,
    bundle: Path,
    state: Annotated[str, Parameter(env_var=STATE_VARIABLE)],
    bundles: Path | None = None,
    host: str | None = None,
    port: int | None = None,
    workers: int | None = None,
    config: Path | None = None,
    allow_anonymous: bool | None = None,
    access_log: bool | None = None,
) -> int:
    """Serve a bundle until SIGTERM or SIGINT.

    Parameters
    ----------
    bundle
        The bundle's folder, as `python -m export bundle` writes it.
    state
        DIR|URL: the folder of the label log, made if it is not there, or a postgresql:// URL.
        Others can read command lines: leave a password to PGPASSFILE, PGPASSWORD or KEYMATCH_STATE.
    bundles
        Folder in which POST /admin/snapshot writes and from which POST /admin/reload opens by name;
        default: the folder that holds --bundle.
    host
        Address to listen on; default 127.0.0.1. Others need API keys (KEYMATCH_API_KEYS names
        their file) or --allow-anonymous.
    port
        Port to listen on; default 8000, 0 for any free one.
    workers
        Worker processes, each with the whole memory and its part of the cores; default 1.
    config
        A TOML file with the tables [limits], [engine] and [server].
    allow_anonymous
        Serve everybody without API keys.
    access_log
        Log a line a request; default yes.
    """
    settings = load_settings(
        config,
        {
            "host": host,
            "port": port,
            "workers": workers,
            "allow_anonymous": allow_anonymous,
            "access_log": access_log,
        },
    )
    keys = os.environ.get(API_KEYS_VARIABLE)
    access = read_keys(Path(keys)) if keys else Access()
    server = settings.server
    require_keys_beyond_loopback(server.host, access, allow_anonymous=server.allow_anonymous)
    configure_logs(access=server.access_log)
    served = Served(
        bundle=bundle,
        bundles=bundles or Path(os.path.abspath(bundle)).parent,
        state=state if "://" in state else Path(state),
        settings=settings,
        access=access,
    )
    if server.workers > 1:
        return serve_in_workers(served, _uvicorn_config(server), _listen(server))
    return _serve_here(served)


def _serve_here(served: Served) -> int:
    telemetry = Telemetry()
    engine = served.engine(telemetry)
    server = served.settings.server
    uvicorn_server = uvicorn.Server(_uvicorn_config(server))

    def stop() -> None:
        uvicorn_server.should_exit = True

    uvicorn_server.config.app = build_app(
        engine,
        settings=served.settings,
        access=served.access,
        telemetry=telemetry,
        failed=stop,
        draining=lambda: uvicorn_server.should_exit,
    )
    # uvicorn puts these back and raises its signal once more when it has drained; left to the
    # default, that would turn an orderly end into a death by SIGTERM.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())
    uvicorn_server.run(sockets=[_listen(server)])
    if isinstance(engine.failure, KeymatchError):
        raise engine.failure
    return 0 if uvicorn_server.started and engine.failure is None else 1


@app.command
def check(*, bundle: Path) -> int:
    """Verify every byte of a bundle and answer one query from it.

    Parameters
    ----------
    bundle
        The bundle's folder.
    """
    opened = open_bundle(bundle)
    facts = opened.manifest
    predictor = Predictor(OnnxEncoder(bundle, facts.encoder), tau=facts.predictor.tau)
    query = opened.label_texts[0]
    options = PredictOptions(
        top_k=1, memorization=facts.predictor.memorization, depth=facts.predictor.depth
    )
    answer = predictor.predict(KnowledgeMemory(opened).view, [query], options)
    best = answer.predictions[0].keywords
    Console().print(
        f"{bundle}: format {facts.version}, {len(facts.files)} files verified;"
        f" {facts.memory.instances:,} instances and {facts.memory.labels:,} labels of"
        f" {facts.dataset}; encoder {facts.encoder.name}, {facts.encoder.quantization},"
        f" d={facts.encoder.dimension}; {query!r} -> {best[0].text if best else None!r}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return 0


def _listen(server: ServerSettings) -> socket.socket:
    """Take the port before anything is opened, so that a taken one shows at once."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    try:
        listening = socket.create_server((server.host, server.port), family=family, backlog=2048)
    except OSError as error:
        raise InvalidConfig(
            f"cannot listen on {server.host} port {server.port}: {error.strerror}"
        ) from error
    host, port = listening.getsockname()[:2]
    log.info("listening", extra={"host": host, "port": port})
    return listening


def _uvicorn_config(server: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app="",  # set by those who serve it
        workers=server.workers,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_config=None,
        timeout_keep_alive=75,  # longer than load balancers keep idle connections (60 s)
        timeout_graceful_shutdown=server.shutdown_seconds,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )


app.command(log_command)
app.command(snapshot)


if __name__ == "__main__":
    sys.exit(run(app))
