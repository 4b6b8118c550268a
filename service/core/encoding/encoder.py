"""Texts to unit vectors: the Rust tokenizer, then an ONNX graph that pools and normalises.

Shapes: n texts, t tokens of the longest text in a batch, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from service.core.bundle.manifest import EncoderFacts
from service.core.errors import BundleAltered, BundleUnsupported, MissingExtra
from service.core.types import Floats, Role

Tokens = list[list[int]]

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
        """Return unit vectors [n, d] of tokenized texts.

        Texts are encoded one by one, or in batches if `together` is set and the encoder allows it.
        """
        ...


class OnnxEncoder:
    """An encoder graph, run on one ONNX thread per call; several threads may call at once.

    The service encodes texts one by one, so that a text always has the same vector, bit for bit:
    in any request, as a new label, and after a restart. A graph in dynamic int8 uses one
    activation scale for a whole batch, which changes vectors by more than rounding, so it is never
    run in batches. In other graphs a batch changes only the last bits of fp32; the export runs
    those in batches of texts of similar length.
    """

    def __init__(self, folder: Path, facts: EncoderFacts) -> None:
        """Load `encoder.onnx` and `tokenizer.json` from `folder`."""
        self._facts = facts
        self._session = open_session(folder / "encoder.onnx")
        self._tokenizer = load_tokenizer(folder / "tokenizer.json", max_tokens=facts.max_tokens)
        self._prompts = {Role.QUERY: facts.query_prompt, Role.LABEL: facts.label_prompt}
        produced = self._session.get_outputs()[0].shape[-1]
        if produced != facts.dimension:
            raise BundleUnsupported(
                f"{folder / 'encoder.onnx'} produces vectors of {produced} dimensions;"
                f" the manifest says {facts.dimension}"
            )

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
        size = _BATCH_TEXTS if together and self._facts.batch_invariant else 1
        vectors = np.empty((len(tokens), self._facts.dimension), np.float32)
        by_length = sorted(range(len(tokens)), key=lambda position: len(tokens[position]))
        for start in range(0, len(tokens), size):
            batch = by_length[start : start + size]
            vectors[batch] = self._run([tokens[position] for position in batch])
        return vectors

    def _run(self, tokens: Tokens) -> Floats:
        longest = max(len(ids) for ids in tokens)
        input_ids = np.zeros((len(tokens), longest), np.int64)  # [n, t]
        attention_mask = np.zeros_like(input_ids)
        for row, ids in enumerate(tokens):
            input_ids[row, : len(ids)] = ids
            attention_mask[row, : len(ids)] = 1
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        vectors: Floats = self._session.run(None, inputs)[0]
        return vectors


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


def open_session(path: Path) -> Any:
    """Return an ONNX graph, run on one thread per call.

    Raises `BundleAltered` if the file is not a graph that onnxruntime can load.
    """
    try:
        import onnxruntime
    except ImportError as error:  # pragma: no cover - needs an environment without onnxruntime
        raise MissingExtra("onnxruntime", extra="cpu") from error
    options = onnxruntime.SessionOptions()
    # Cores are used by concurrent calls, one thread each. Two threads per call made p99 five to
    # ten times worse, at an equal median.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(
            str(path), options, providers=onnxruntime.get_available_providers()
        )
    except Exception as error:  # onnxruntime's exceptions share no public base
        raise BundleAltered(f"{path} is not a graph that onnxruntime can load") from error
