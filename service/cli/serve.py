"""`keymatch serve`: check the options, then run the server."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from service.command_line import DEFAULT_CACHE, STATE_VARIABLE, CacheOption
from service.core.errors import InvalidInput

if TYPE_CHECKING:
    from service.shards.cluster import ClusterConfig

MOST_REPLICAS = 16


def serve(
    *,
    bundle: str,
    state: Annotated[str, Parameter(env_var=STATE_VARIABLE)],
    bundles: str | None = None,
    cache: CacheOption = DEFAULT_CACHE,
    host: str | None = None,
    port: int | None = None,
    workers: int | None = None,
    config: Path | None = None,
    allow_anonymous: bool | None = None,
    access_log: bool | None = None,
    other_data: bool | None = None,
    shards: int | None = None,
    replicas: int = 1,
    cluster: str | None = None,
) -> int:
    """Serve a bundle until SIGTERM or SIGINT.

    Parameters
    ----------
    bundle
        The bundle's folder, as `keymatch export bundle` writes it, or its URL in an object store:
        s3://BUCKET/PATH, gs://BUCKET/PATH or file:///PATH.
    state
        DIR|URL: the folder of the label log, created if it does not exist, or a postgresql:// URL.
        Other users of the machine can read command lines: pass a password through PGPASSFILE,
        PGPASSWORD or KEYMATCH_STATE.
    bundles
        Folder or URL for POST /admin/snapshot, which writes to it, and /admin/reload; default: the
        one that contains --bundle.
    cache
        Folder for copies of bundles that URLs name.
    host
        Address to listen on; default 127.0.0.1. Any other address needs API keys (KEYMATCH_API_KEYS
        names their file), tokens (KEYMATCH_JWKS names a file with the keys that verify them), or
        --allow-anonymous.
    port
        Port to listen on; default 8000, 0 for any free port.
    workers
        Worker processes, each with the whole memory and its share of the cores; default: one per
        core, and at most one per 3 GiB of memory.
    config
        A TOML file with the tables [limits], [engine] and [server].
    allow_anonymous
        Serve every client without API keys or tokens.
    access_log
        Log one line per request; default yes.
    other_data
        Accept a label log that was begun for other data than the bundle's; default no.
    shards
        Divide the keys into so many shards, each a process of a Ray cluster; default: not divided.
    replicas
        Processes that hold the same shard; with two or more, one of them may die.
    cluster
        auto|HOST:PORT: where the shards run: on a cluster that is started on this machine, or that
        of a Ray head; default auto.
    """
    # The server, which --help does not need.
    from service.core.bundle.object_store import checked_url, is_url, parent_of
    from service.engine.device import require_device
    from service.http import access as api_keys
    from service.server.launcher import launch
    from service.server.worker import ServeConfig
    from service.settings import API_KEYS_VARIABLE, JWKS_VARIABLE, load_settings

    options = {
        "host": host,
        "port": port,
        "workers": workers,
        "allow_anonymous": allow_anonymous,
        "access_log": access_log,
    }
    settings = load_settings(config, options, engine={"other_data": other_data})
    keys = os.environ.get(API_KEYS_VARIABLE)
    access = api_keys.read_keys(Path(keys)) if keys else api_keys.Access()
    if key_set := os.environ.get(JWKS_VARIABLE):
        from service.http.tokens import read_tokens  # needs the extra `jwt`

        access = replace(access, tokens=read_tokens(Path(key_set), settings.server))
    api_keys.require_keys(settings.server, access)
    require_device(settings.engine.device)
    if bundles is None:
        bundles = parent_of(bundle) if is_url(bundle) else str(Path(os.path.abspath(bundle)).parent)
    divided = _cluster_config(shards, replicas, cluster)
    if divided is not None and settings.engine.device != "cpu":
        raise InvalidInput("a divided memory is searched by CPUs: use device cpu", field="shards")
    return launch(
        ServeConfig(
            bundle=bundle,
            bundles=checked_url(bundles) if is_url(bundles) else Path(bundles),
            cache=cache,
            state=state if "://" in state else Path(state),
            settings=settings,
            access=access,
            cluster=divided,
        )
    )


def _cluster_config(shards: int | None, replicas: int, cluster: str | None) -> ClusterConfig | None:
    """Return how the memory is divided; raises `InvalidInput`."""
    from service.core.bundle.ranges import MOST_PARTS
    from service.core.processes.ray_cluster import AUTO, require_ray
    from service.shards.cluster import ClusterConfig

    if shards is None:
        if replicas != 1 or cluster is not None:
            raise InvalidInput("--replicas and --cluster need --shards", field="shards")
        return None
    for name, value, most in (
        ("shards", shards, MOST_PARTS),
        ("replicas", replicas, MOST_REPLICAS),
    ):
        if not 1 <= value <= most:
            raise InvalidInput(f"--{name} is {value}, and may be 1 to {most}", field=name)
    require_ray()
    return ClusterConfig(shards=shards, replicas=replicas, address=cluster or AUTO)
