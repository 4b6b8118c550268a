"""Text to unit vectors: the Rust tokenizer, then the ONNX graph that pools and normalises inside.

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

_BUCKET_TEXTS = 32  # texts in one call of a batch-invariant graph
_CHUNK_TEXTS = 512  # texts that one thread of `encode_all` takes at a time


class Encoder(Protocol):
    """What the predictor and the writer need of an encoder."""

    @property
    def dimension(self) -> int:
        """How many dimensions a vector has."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal vectors."""
        ...

    def tokenize(self, texts: Sequence[str], *, role: Role) -> Tokens:
        """Token ids of each text, truncated to the encoder's maximum."""
        ...

    def embed(self, tokens: Tokens, *, together: bool = False) -> Floats:
        """Unit vectors [n, d] of tokenized texts, one text a call unless `together`."""
        ...


class OnnxEncoder:
    """An encoder graph on one ONNX thread a call; several threads may call at once.

    What is served is run one text at a time, so that a text has the same vector, bit for bit,
    whoever asks beside it: in a query, in a live insert and after a restart. A graph in dynamic
    int8 picks one activation scale for a whole batch, which moves a vector by more than rounding,
    so it is run so everywhere. Others, where a batch changes the
    last bits of fp32 only, are run in batches of similar length when many texts are exported.
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
        """How many dimensions a vector has."""
        return self._facts.dimension

    @property
    def fingerprint(self) -> str:
        """SHA-256 over graph and tokenizer."""
        return self._facts.fingerprint

    def tokenize(self, texts: Sequence[str], *, role: Role) -> Tokens:
        """See `Encoder.tokenize`; the role's prompt stands before each text."""
        prompt = self._prompts[role]
        encodings = self._tokenizer.encode_batch_fast([prompt + text for text in texts])
        return [encoding.ids for encoding in encodings]

    def embed(self, tokens: Tokens, *, together: bool = False) -> Floats:
        """See `Encoder.embed`."""
        size = _BUCKET_TEXTS if together and self._facts.batch_invariant else 1
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
    """Unit vectors [n, d] of a few texts, in the calling thread."""
    return encoder.embed(encoder.tokenize(texts, role=role))


def encode_all(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    role: Role,
    threads: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Floats:
    """Unit vectors [n, d] of many texts, in `threads` threads; `progress` gets the texts done.

    Chunks are cut from the texts in order of their length, so that a bucket pads little.
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
    """The tokenizer without padding, truncating to `max_tokens`."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise BundleAltered(f"{path} is not a tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def open_session(path: Path) -> Any:
    """A graph on one thread a call; raises `BundleAltered` where the file is none."""
    try:
        import onnxruntime
    except ImportError as error:  # pragma: no cover - needs an environment without onnxruntime
        raise MissingExtra("onnxruntime", extra="cpu") from error
    options = onnxruntime.SessionOptions()
    # Parallelism comes from as many calls at once as there are cores: two threads in one call
    # made p99 five to ten times worse at an equal median.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(
            str(path), options, providers=onnxruntime.get_available_providers()
        )
    except Exception as error:  # onnxruntime's exceptions share no public base
        raise BundleAltered(f"{path} is not a graph that onnxruntime can load") from error
