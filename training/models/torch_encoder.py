"""Torch encoders: every model that sentence-transformers loads, by hub name, folder or package.

Shapes: n texts, t tokens, d dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from service.core.errors import InvalidInput, MissingExtra
from service.core.types import Floats, Role
from training.models.encoder_location import MODULES, find_encoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_OURS = {"training.models.ngrams.CharacterNgrams", "training.models.two_heads.TwoHeads"}
_POOLINGS = {"last-token": "lasttoken"}  # as sentence-transformers names it
_PROMPT_NAMES = {Role.QUERY: ("query",), Role.LABEL: ("document", "passage", "corpus")}


@dataclass(frozen=True, kw_only=True)
class TorchEncoder:
    """A loaded checkpoint; an exported graph is compared with it."""

    name: str
    model: SentenceTransformer
    prompts: Mapping[Role, str]
    max_tokens: int

    @property
    def dimension(self) -> int:
        """d, the number of dimensions of a vector."""
        return int(self.model.get_embedding_dimension())

    @property
    def tokenizer(self) -> Any:
        """The fast Hugging Face tokenizer."""
        return self.model.tokenizer

    def encode(self, texts: Sequence[str], *, role: Role) -> Floats:
        """Unit vectors [n, d]."""
        vectors: Floats = self.model.encode(
            [self.prompts[role] + text for text in texts],
            prompt="",
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, np.float32)


def load_encoder(
    name: str,
    *,
    max_tokens: int | None = None,
    limited_by: str = "max-tokens",
    query_prompt: str | None = None,
    label_prompt: str | None = None,
) -> TorchEncoder:
    """Load an encoder on the CPU.

    `name` is a folder, `package:NAME` (an installed package that contains a sentence-transformers
    folder) or a name on the Hugging Face hub. A plain Hugging Face model gets mean pooling. Prompts
    default to the model's configuration. Raises `InvalidInput` where `name` cannot be loaded, and
    where it does not read `max_tokens`, which the user set by what `limited_by` names.
    """
    location = find_encoder(name)
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingExtra("sentence-transformers", extra="export") from error
    try:
        with without_progress_bars():
            model = SentenceTransformer(
                location.name,
                device="cpu",
                trust_remote_code=_is_safe_to_trust(Path(location.name)),
                local_files_only=location.offline,
            ).eval()
    except Exception as error:  # the libraries below raise OSError, ValueError and many others
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise InvalidInput(f"encoder {name!r} cannot be loaded: {first_line}") from error
    _use_eager_attention(model)
    _pad_on_the_right(model.tokenizer)
    limit = int(model.max_seq_length or model.tokenizer.model_max_length)
    if max_tokens is not None and not 1 <= max_tokens <= limit:
        raise InvalidInput(f"{limited_by} must lie in 1..{limit} for the encoder {name!r}")
    model.max_seq_length = max_tokens or limit
    return TorchEncoder(
        name=name,
        model=model,
        prompts={
            Role.QUERY: _prompt(model, Role.QUERY) if query_prompt is None else query_prompt,
            Role.LABEL: _prompt(model, Role.LABEL) if label_prompt is None else label_prompt,
        },
        max_tokens=model.max_seq_length,
    )


def set_pooling(model: SentenceTransformer, pooling: str) -> None:
    """Replace how the vectors of tokens become one; raises `InvalidInput` where nothing pools."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    for place, module in enumerate(model):
        if isinstance(module, Pooling):
            model[place] = Pooling(
                module.embedding_dimension, pooling_mode=_POOLINGS.get(pooling, pooling)
            )
            return
    raise InvalidInput(f"encoder.pooling is {pooling!r}, but this encoder has no pooling module")


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide the progress bars that transformers shows while it reads and writes weights."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _is_safe_to_trust(folder: Path) -> bool:
    """Whether the only foreign modules of a folder are Keymatch's, and it contains no code.

    sentence-transformers loads no class but its own unless it is told to trust the folder.
    """
    try:
        modules = json.loads((folder / MODULES).read_bytes())
        foreign = {m["type"] for m in modules if not m["type"].startswith("sentence_transformers.")}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(foreign) and foreign <= _OURS and not any(folder.rglob("*.py"))


def _use_eager_attention(model: SentenceTransformer) -> None:
    """Choose plain attention on a processor: fused attention is built for long texts.

    Over keywords of about five tokens it makes a step of training 1.5 to 2.5 times as long.
    """
    import torch
    from transformers import PreTrainedModel

    if torch.cuda.is_available():
        return
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.set_attn_implementation("eager")


def _pad_on_the_right(tokenizer: Any) -> None:
    """Pad as batches of training are padded; causal language models often come without padding.

    Their positions are counted from the left, so padding there would change a text's vector. What
    token pads does not matter, since it is masked.
    """
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token


def _prompt(model: SentenceTransformer, role: Role) -> str:
    known: Mapping[str, str] = model.prompts or {}
    return next((known[name] for name in _PROMPT_NAMES[role] if known.get(name)), "")
