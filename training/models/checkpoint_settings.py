"""The settings of a checkpoint: each is honored, or refused by name before anything is trained.

| setting                                        | result                                          |
|------------------------------------------------|-------------------------------------------------|
| `prompts`, `default_prompt_name`               | honored, see `prompts`                          |
| `max_seq_length`, table of positions           | the smaller one limits a text, see `token_limit`|
| `truncation_side` of the tokenizer             | honored, also by the service                    |
| a prompt that leaves a text few tokens         | refused, see `require_room`                     |
| `include_prompt: false` of the pooling         | refused, unless there is no prompt              |
| `query_length` and others in `UNKNOWN`         | refused                                         |
| first module, tokenizer, missing pooling       | refused if Keymatch cannot use them             |
| any other                                      | refused by `try_out` if it changes a vector     |

Shapes: n texts, d dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer

from service.core.encoding.encoder import full_length_text
from service.core.errors import InvalidInput
from service.core.types import Floats, Role
from training.models.ngrams import SENTENCE_EMBEDDING
from training.models.pooled import PooledEncoder
from training.models.tokens import padded, tokenize

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from training.models.torch_encoder import TorchEncoder

UNLIMITED_TOKENS = 512  # where texts are cut if a checkpoint, such as T5, states no limit
PROMPT_NAMES = {Role.QUERY: ("query",), Role.LABEL: ("document", "passage", "corpus")}
UNKNOWN = ("query_length", "document_length", "query_expansion", "processing_kwargs")
LEAST_ROOM = 8  # tokens of a text, next to its prompt
_MOST_TOKENS = 2**31  # transformers writes 10**30 for "no limit"
# Families whose models need prompts that their checkpoints often do not name, by parts of a name.
_FAMILIES: tuple[tuple[re.Pattern[str], Mapping[Role, str]], ...] = (
    (
        re.compile(r"(?i)(^|[-_/])e5[-_](?!.*instruct)"),
        {Role.QUERY: "query: ", Role.LABEL: "passage: "},
    ),
    (
        re.compile(r"(?i)(^|[-_/])bge-(small|base|large)-en"),
        {Role.QUERY: "Represent this sentence for searching relevant passages: ", Role.LABEL: ""},
    ),
    (
        re.compile(r"(?i)(^|[-_/])bge-(small|base|large)-zh"),
        {Role.QUERY: "为这个句子生成表示以用于检索相关文章：", Role.LABEL: ""},  # noqa: RUF001
    ),
)
# The smallest allowed cosine between our vector and the library's, in fp32 and in half precision.
_LEAST_COSINE, _LEAST_COSINE_OF_HALF = 0.9999, 0.99


def require_supported(model: SentenceTransformer, name: str) -> None:
    """Raise `InvalidInput` for a kind of encoder, or a setting of it, that Keymatch cannot use."""
    first = model[0]
    if not isinstance(first, Transformer):
        kind = type(first).__name__
        raise refused(name, f"its first module is {kind}, and only transformers can be used")
    if not isinstance(getattr(model.tokenizer, "backend_tokenizer", None), Tokenizer):
        kind = f"its tokenizer ({type(model.tokenizer).__name__})"
        raise refused(name, f"{kind} has no tokenizer.json, which the service reads")
    pools = any(isinstance(module, Pooling) for module in model)
    if first.module_output_name != SENTENCE_EMBEDDING and not pools:
        reason = "it has no Pooling module, which makes one vector of those of the tokens"
        raise refused(name, f"{reason}: add one with sentence-transformers")
    for setting in UNKNOWN:
        if value := getattr(first, setting, None):
            advice = "remove it from sentence_bert_config.json if vectors without it will do"
            raise refused(name, f"its setting {setting} ({value}) would be dropped: {advice}")


def token_limit(model: SentenceTransformer) -> int | None:
    """Return the largest number of tokens that the encoder reads; None if nothing limits it.

    RoBERTa and its relatives number positions from the one after padding on: with a table of 514
    positions they read 512 tokens.
    """
    limits = [int(model.max_seq_length or model.tokenizer.model_max_length)]
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, torch.nn.Embedding):
            padding = getattr(module, "padding_idx", None)
            limits.append(table.num_embeddings - (padding + 1 if isinstance(padding, int) else 0))
    return min(limits) if min(limits) < _MOST_TOKENS else None


def prompts(model: SentenceTransformer, given: Mapping[Role, str]) -> dict[Role, str]:
    """Return the prompt of each role: the one given, otherwise the one of sentence-transformers.

    `encode_query` and `encode_document` take the first of `PROMPT_NAMES` that the checkpoint has,
    even if that prompt is empty. Only without one they take the prompt of `default_prompt_name`.
    """
    known: Mapping[str, str | None] = model.prompts or {}
    default = None if model.default_prompt_name is None else known.get(model.default_prompt_name)
    named = {
        role: next((known[name] for name in names if name in known), default) or ""
        for role, names in PROMPT_NAMES.items()
    }
    return {**named, **given}


def prompt_hints(encoder: TorchEncoder) -> Iterator[str]:
    """Yield sentences about prompts that a checkpoint seems to need, and that are not used."""
    known = {name: text for name, text in (encoder.model.prompts or {}).items() if text}
    default = encoder.model.default_prompt_name
    options = {Role.QUERY: "--query-prompt", Role.LABEL: "--label-prompt"}
    for role, names in PROMPT_NAMES.items():
        if encoder.prompts[role] or role in encoder.given_prompts:
            continue
        unused = next((one for one in (*names, default) if one in known), None)
        if unused is not None:
            why = f"its prompt {unused!r} is not used: sentence-transformers takes none for a"
            yield f"{why} {role.value}; if it should be, pass {options[role]} {known[unused]!r}"
            continue
        of_family = (one[role] for family, one in _FAMILIES if family.search(encoder.name))
        if prompt := next(of_family, ""):
            why = (
                f"it names no prompt for a {role.value}, and models of its family are trained with"
            )
            yield f"{why} one; if it is one of them, pass {options[role]} {prompt!r}"


def require_room(encoder: TorchEncoder, limits: Mapping[Role, int]) -> None:
    """Raise `InvalidInput` if a prompt leaves a text too few of the tokens that are its limit.

    If it left none, all texts would have one vector.
    """
    for role, prompt in encoder.prompts.items():
        with _unchanged(encoder.tokenizer.backend_tokenizer):
            # With a word, since tokenizers may join the end of a prompt and the begin of a text.
            table = tokenize(encoder.tokenizer, ["a"], prompt=prompt, max_tokens=_MOST_TOKENS)
        taken = int(table.lengths[0]) - 1
        if prompt and limits[role] - taken < LEAST_ROOM:
            raise refused(
                encoder.name,
                f"the prompt of a {role.value} takes {taken:,} of {limits[role]:,} tokens (with"
                f" those that begin and end a text), and a text needs {LEAST_ROOM} or more; give a"
                " shorter prompt, or allow more tokens",
            )


def require_pooled_prompts(encoder: TorchEncoder) -> None:
    """Raise `InvalidInput` if there is a prompt but the pooling leaves prompts out."""
    if any(encoder.prompts.values()) and any(
        isinstance(module, Pooling) and not module.include_prompt for module in encoder.model
    ):
        raise refused(
            encoder.name,
            "its pooling leaves the prompt out (include_prompt = false), which a graph for texts of"
            " any role cannot do: set include_prompt to true in the pooling's config.json, or give"
            " an empty query prompt and an empty label prompt",
        )


def try_out(encoder: TorchEncoder) -> None:
    """Encode a short and a full-length text of each role as training and serving will do.

    Raises `InvalidInput` if that fails, or if sentence-transformers' own vectors differ.
    """
    texts = ("keyword", full_length_text(encoder.max_tokens))
    is_whole = next(encoder.model.parameters()).dtype == torch.float32
    least = _LEAST_COSINE if is_whole else _LEAST_COSINE_OF_HALF
    for role, text in product(encoder.prompts, texts):
        words = len(text.split())
        try:
            with _unchanged(encoder.tokenizer.backend_tokenizer):
                ours = _vector(encoder, text, role)
                theirs = encoder.encode([text], role=role)[0]
        except Exception as error:  # torch and models raise errors of many classes
            reason = f"it fails on a text of {min(words, encoder.max_tokens)} words"
            raise refused(encoder.name, f"{reason}: {first_line(error)}") from error
        cosine = float(ours @ theirs) if ours.shape == theirs.shape else 0.0
        if not cosine >= least:  # also for nan
            raise refused(
                encoder.name,
                f"its vectors differ from those of sentence-transformers (cosine {cosine:.2f} for a"
                f" {role.value} of {words} words), so it has a setting that would be dropped",
            )


def refused(name: str, reason: str) -> InvalidInput:
    """Return the error for an encoder that was loaded but cannot be used."""
    return InvalidInput(f"encoder {name!r} cannot be used: {reason}")


def first_line(error: Exception) -> str:
    """Return the first line of a message, or the error itself if it has none."""
    return next(iter(str(error).strip().splitlines()), repr(error))


@contextmanager
def _unchanged(tokenizer: Tokenizer) -> Iterator[None]:
    """Restore a tokenizer's truncation and padding after the block, in which calls change them."""
    truncation, padding = tokenizer.truncation, tokenizer.padding
    try:
        yield
    finally:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if truncation is not None:
            tokenizer.enable_truncation(**truncation)
        if padding is not None:
            tokenizer.enable_padding(**padding)


def _vector(encoder: TorchEncoder, text: str, role: Role) -> Floats:
    """Return a text's unit vector [d], computed by Keymatch's own code instead of the library's."""
    table = tokenize(
        encoder.tokenizer, [text], prompt=encoder.prompts[role], max_tokens=encoder.max_tokens
    )
    features = padded(table, np.zeros(1, np.int64), padding=0, device="cpu")
    with torch.inference_mode():
        vector: Floats = PooledEncoder(encoder.model)(**features)[0].float().numpy()
    return vector
