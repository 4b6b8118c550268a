"""Texts to unit vectors: the Rust tokenizer, then an ONNX graph that pools and normalises.

Shapes: n texts, t tokens of the longest text in a batch, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from service.core.bundle.bundle import Bundle
from service.core.bundle.manifest import EncoderFacts
from service.core.encoding.bucketed_graph import BATCHES, BucketedGraph
from service.core.encoding.graph_inputs import Tokens, graph_inputs
from service.core.encoding.onnx_session import ONNX_DEVICES, open_session
from service.core.errors import BundleAltered, BundleUnsupported
from service.core.types import DeviceName, Floats, Role

_BATCH_TEXTS = 32  # texts in one call of a batch-invariant graph
_CHUNK_TEXTS = 512  # texts that a thread of `encode_all` encodes before it reports progress


class Encoder(Protocol):
    """An encoder of texts, as the predictor and the representer use it."""

    @property
    def dimension(self) -> int:
        """Number of dimensions of a vector."""
        ...

    @property
    def fingerprint(self) -> str:
        """Identifies the encoder: equal fingerprints mean equal vectors."""
        ...

    def tokenize(self, texts: Sequence[str], *, role: Role) -> Tokens:
        """Return the token ids of each text, cut to the encoder's maximum."""
        ...

    def embed(self, tokens: Tokens, *, together: bool = False) -> Floats:
        """Return unit vectors [n, d] of tokenized texts, in batches where that changes no bit.

        `together` also allows batches that change the last bits of fp32.
        """
        ...


class OnnxEncoder:
    """An encoder graph, run on one ONNX thread per call; several threads may call at once.

    What the processor serves must be the same, bit for bit, in any request and after a restart. A
    graph in static int8 gives a text the same bits in every batch; one in fp32 may change the last
    of them, so it runs in batches only where the caller allows that. A graph in dynamic int8 uses
    one activation scale for a whole batch, so it is never run in batches.

    A GPU is of use only in batches, so there they are always run: answers are the same within a
    tolerance (service/README.md), and graphs in int8 are refused, since most of their operators
    have no kernel there.
    """

    def __init__(
        self,
        folder: Path,
        facts: EncoderFacts,
        *,
        graph: str = "encoder.onnx",
        device: DeviceName = "cpu",
    ) -> None:
        """Load the file `graph` and `tokenizer.json` from `folder`; on a GPU, warm all shapes up.

        Raises `BundleUnsupported` for a graph that the device cannot run, and as `open_session`.
        """
        self._facts = facts
        if device != "cpu" and not facts.floating_point:
            raise BundleUnsupported(
                f"{folder / graph} is quantized to {facts.quantization}, which has no kernels on"
                f' device = "{device}": export the encoder with --quantize none'
            )
        self._session = open_session(folder / graph, device)
        self._tokenizer = load_tokenizer(folder / "tokenizer.json", max_tokens=facts.max_tokens)
        self._prompts = {
            Role.QUERY: facts.query_prompt,
            Role.LABEL: facts.label_prompt,
            Role.ITEM: facts.label_prompt,
        }
        produced = self._session.get_outputs()[0].shape[-1]
        if produced != facts.dimension:
            raise BundleUnsupported(
                f"{folder / graph} produces vectors of {produced} dimensions;"
                f" the manifest says {facts.dimension}"
            )
        self._buckets = None if device == "cpu" else self._in_buckets(device)

    @property
    def dimension(self) -> int:
        """Number of dimensions of a vector."""
        return self._facts.dimension

    @property
    def fingerprint(self) -> str:
        """SHA-256 over graph, tokenizer, limits and prompts, as the manifest records it."""
        return self._facts.fingerprint

    def tokenize(self, texts: Sequence[str], *, role: Role) -> Tokens:
        """Return the token ids of each text, with the role's prompt before it."""
        prompt = self._prompts[role]
        encodings = self._tokenizer.encode_batch_fast([prompt + text for text in texts])
        return [encoding.ids for encoding in encodings]

    def embed(self, tokens: Tokens, *, together: bool = False) -> Floats:
        """Return unit vectors [n, d]; batches hold texts of similar length."""
        size = self._batch_texts(together)
        vectors = np.empty((len(tokens), self._facts.dimension), np.float32)
        by_length = sorted(range(len(tokens)), key=lambda position: len(tokens[position]))
        for start in range(0, len(tokens), size):
            batch = by_length[start : start + size]
            vectors[batch] = self.embed_batch([tokens[position] for position in batch])
        return vectors

    def embed_batch(self, tokens: Tokens) -> Floats:
        """Return unit vectors [n, d] of one batch, even where a text's depends on the others."""
        if self._buckets is not None:
            return self._buckets(tokens)
        vectors: Floats = self._session.run(None, graph_inputs(tokens))[0]
        return vectors

    def _batch_texts(self, together: bool) -> int:
        """How many texts one call may encode."""
        if self._buckets is not None:
            return BATCHES[-1]
        facts = self._facts
        batches = facts.same_bits_in_batches or (together and facts.batch_invariant)
        return _BATCH_TEXTS if batches else 1

    def _in_buckets(self, device: DeviceName) -> BucketedGraph:
        graph = BucketedGraph(
            self._session,
            memory=ONNX_DEVICES[device].memory,
            dimension=self._facts.dimension,
            max_tokens=self._facts.max_tokens,
        )
        graph.warm_up()
        return graph


def open_query_encoder(bundle: Bundle, encoder: Encoder, *, device: DeviceName = "cpu") -> Encoder:
    """Return what encodes queries for a bundle: its own graph for them, otherwise `encoder`.

    Both give vectors of the same space. Labels and posted texts are always encoded by `encoder`.
    """
    queries = bundle.query_encoder
    if queries is None:
        return encoder
    return OnnxEncoder(bundle.folder, queries.facts, graph=queries.graph.name, device=device)


def encode(encoder: Encoder, texts: Sequence[str], *, role: Role) -> Floats:
    """Return unit vectors [n, d] of a few texts, encoded one by one in the calling thread."""
    return encoder.embed(encoder.tokenize(texts, role=role))


def encode_all(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    role: Role,
    threads: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Floats:
    """Return unit vectors [n, d] of many texts, encoded in `threads` threads.

    `progress` is called with the number of finished texts. Texts are sorted by length before they
    are cut into chunks, so that the texts of a batch need little padding.
    """
    vectors = np.empty((len(texts), encoder.dimension), np.float32)
    by_length = sorted(range(len(texts)), key=lambda position: len(texts[position]))
    chunks = [by_length[i : i + _CHUNK_TEXTS] for i in range(0, len(texts), _CHUNK_TEXTS)]

    def run(chunk: list[int]) -> int:
        tokens = encoder.tokenize([texts[position] for position in chunk], role=role)
        vectors[chunk] = encoder.embed(tokens, together=True)
        return len(chunk)

    with ThreadPoolExecutor(threads) as pool:
        done = 0
        for count in pool.map(run, chunks):
            done += count
            progress(done)
    return vectors


def load_tokenizer(path: Path, *, max_tokens: int) -> Tokenizer:
    """Return the tokenizer at `path`, without padding and cutting texts to `max_tokens`.

    Raises `BundleAltered` if the file is not a tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise BundleAltered(f"{path} is not a tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer
