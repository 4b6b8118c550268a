"""Encodes texts as unit vectors: the Rust tokenizer, then an ONNX graph that pools and normalizes.

Shapes: n texts, t tokens of the longest text in a batch, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from service.core.bundle.bundle import ENCODER, TOKENIZER, Bundle
from service.core.bundle.manifest import EncoderFacts
from service.core.encoding.onnx_session import (
    BATCHES,
    ONNX_DEVICES,
    BucketedGraph,
    Tokens,
    graph_inputs,
    open_session,
)
from service.core.errors import BundleAltered, BundleUnsupported
from service.core.types import DeviceName, Floats, Role

_BATCH_TEXTS = 32  # texts in one call of a batch-invariant graph
_CHUNK_TEXTS = 512  # texts that a thread of `encode_all` encodes between two progress reports
_WORDS = ("red", "tent", "for", "two", "people", "and", "a", "lamp")
_TRIED_TOKENS = 2048  # no known encoder has more positions, and attention is quadratic


class Encoder(Protocol):
    """The interface of an encoder of texts, for the predictor and the representer."""

    @property
    def dimension(self) -> int:
        """The number of dimensions of a vector."""
        ...

    @property
    def fingerprint(self) -> str:
        """Identifies the encoder. Equal fingerprints mean equal vectors."""
        ...

    def tokenize(self, texts: Sequence[str], *, role: Role) -> Tokens:
        """Return the token ids of each text, cut to the encoder's maximum length."""
        ...

    def embed(self, tokens: Tokens, *, together: bool = False) -> Floats:
        """Return unit vectors [n, d] of tokenized texts, in batches if that changes no bit.

        `together` allows batches even if they change the last bits of fp32.
        """
        ...


class OnnxEncoder:
    """An encoder graph, run on one ONNX thread per call; several threads may call at once.

    On the CPU, a text must have the same bits in every request and after a restart. Static int8
    keeps them in every batch. A batch may change the last bits of fp32, so the caller must allow
    batches. Dynamic int8 uses one activation scale for a whole batch, so it never runs in batches.

    A GPU is only worthwhile with batches, so it always uses them. Its answers are equal within a
    tolerance (service/how-it-works.md). Graphs in int8 are refused, because the GPU lacks most of
    their operators.
    """

    def __init__(self, folder: Path, facts: EncoderFacts, *, device: DeviceName = "cpu") -> None:
        """Load `encoder.onnx` and `tokenizer.json` from `folder`. On a GPU, run all shapes once.

        Raises `BundleUnsupported` if the device cannot run the graph; else as `open_session`.
        """
        self._facts, self._same_bits = facts, facts.same_bits_in_batches
        if device != "cpu" and not facts.floating_point:
            raise BundleUnsupported(
                f"{folder / ENCODER} is quantized to {facts.quantization}, which has no kernels on"
                f' device = "{device}": export the encoder with --quantize none'
            )
        self._session = open_session(folder / ENCODER, device)
        self._tokenizer = load_tokenizer(folder / TOKENIZER, max_tokens=facts.max_tokens)
        produced = self._session.get_outputs()[0].shape[-1]
        if produced != facts.dimension:
            raise BundleUnsupported(
                f"{folder / ENCODER} produces vectors of {produced} dimensions;"
                f" the manifest says {facts.dimension}"
            )
        self._buckets: BucketedGraph | None = None
        if device != "cpu":
            self._buckets = BucketedGraph(
                self._session,
                memory=ONNX_DEVICES[device].memory,
                dimension=facts.dimension,
                max_tokens=facts.max_tokens,
            )
            self._buckets.warm_up()

    @property
    def dimension(self) -> int:
        """The number of dimensions of a vector."""
        return self._facts.dimension

    @property
    def fingerprint(self) -> str:
        """The SHA-256 over graph, tokenizer, limits and prompts, as in the manifest."""
        return self._facts.fingerprint

    def tokenize(self, texts: Sequence[str], *, role: Role) -> Tokens:
        """Return the token ids of each text, with the prompt of its role before it."""
        facts = self._facts
        prompt = facts.query_prompt if role is Role.QUERY else facts.label_prompt
        encodings = self._tokenizer.encode_batch_fast([prompt + text for text in texts])
        return [encoding.ids for encoding in encodings]

    def embed(self, tokens: Tokens, *, together: bool = False) -> Floats:
        """Return unit vectors [n, d]; batches hold texts of similar length."""
        facts, size = self._facts, 1
        if self._buckets is not None:
            size = BATCHES[-1]
        elif self._same_bits or (together and facts.batch_invariant):
            size = _BATCH_TEXTS
        vectors = np.empty((len(tokens), facts.dimension), np.float32)
        by_length = sorted(range(len(tokens)), key=lambda position: len(tokens[position]))
        for start in range(0, len(tokens), size):
            batch = by_length[start : start + size]
            vectors[batch] = self.embed_batch([tokens[position] for position in batch])
        return vectors

    def embed_batch(self, tokens: Tokens) -> Floats:
        """Return unit vectors [n, d] of one batch, even if texts affect each other's vectors."""
        if self._buckets is not None:
            return self._buckets(tokens)
        vectors: Floats = self._session.run(None, graph_inputs(tokens))[0]
        return vectors


class DeferredEncoder:
    """An `OnnxEncoder` on the CPU that is loaded for the first text; implements `Encoder`.

    For processes that encode a text only if the log has vectors of another encoder.
    """

    def __init__(self, folder: Path, facts: EncoderFacts) -> None:
        """Load from `folder` later, which may raise what `OnnxEncoder` raises."""
        self._folder, self._facts = folder, facts

    @property
    def dimension(self) -> int:
        """The number of dimensions of a vector."""
        return self._facts.dimension

    @property
    def fingerprint(self) -> str:
        """The SHA-256 over graph, tokenizer, limits and prompts, as in the manifest."""
        return self._facts.fingerprint

    def tokenize(self, texts: Sequence[str], *, role: Role) -> Tokens:
        """Return the token ids of each text, with the prompt of its role before it."""
        return self._encoder.tokenize(texts, role=role)

    def embed(self, tokens: Tokens, *, together: bool = False) -> Floats:
        """Return unit vectors [n, d]; batches hold texts of similar length."""
        return self._encoder.embed(tokens, together=together)

    @cached_property
    def _encoder(self) -> OnnxEncoder:
        return OnnxEncoder(self._folder, self._facts)


def require_full_length(bundle: Bundle, encoder: Encoder) -> None:
    """Raise `BundleUnsupported` if a bundle's encoder cannot encode a text of maximum length.

    Every long text of a client would fail, too.
    """
    limit = bundle.manifest.encoder.max_tokens
    try:
        encode(encoder, [full_length_text(limit)], role=Role.QUERY)
    except Exception as error:  # onnxruntime's exceptions share no public base
        raise BundleUnsupported(
            f"{bundle.folder}: the encoder fails on a text of {limit} tokens, its limit: export"
            " it again from its checkpoint"
        ) from error


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

    `progress` is called with the number of finished texts. Texts are sorted by length and then cut
    into chunks, so the texts of a batch need little padding.
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


def full_length_text(max_tokens: int, *, words: Sequence[str] = _WORDS) -> str:
    """Return a text of `max_tokens` words (at most `_TRIED_TOKENS`), taken from `words` in turn."""
    return " ".join(islice(cycle(words), min(max_tokens, _TRIED_TOKENS)))


def load_tokenizer(path: Path, *, max_tokens: int) -> Tokenizer:
    """Return the tokenizer at `path`; it cuts texts to `max_tokens` and does not pad.

    It cuts the end of a text, or the beginning if the file says so. Raises `BundleAltered` if the
    file is not a tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # Rust raises bare Exception
        raise BundleAltered(f"{path} is not a tokenizer: {error}") from error
    tokenizer.no_padding()
    stored = tokenizer.truncation or {}
    tokenizer.enable_truncation(max_tokens, direction=stored.get("direction", "right"))
    return tokenizer
