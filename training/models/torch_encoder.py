"""Torch encoders: every model that sentence-transformers loads, by hub name, folder or package.

Shapes: n texts, t tokens, d dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from service.core.errors import InvalidInput
from service.core.types import Floats, Role
from training.models.encoder_location import MODULES, find_encoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_OURS = {"training.models.ngrams.CharacterNgrams", "training.models.two_heads.TwoHeads"}
_POOLINGS = {"last-token": "lasttoken"}  # as sentence-transformers names it


@dataclass(frozen=True, kw_only=True)
class TorchEncoder:
    """A loaded checkpoint. Of its `prompts`, the `given_prompts` replace the checkpoint's own."""

    name: str
    model: SentenceTransformer
    prompts: Mapping[Role, str]
    max_tokens: int
    given_prompts: Mapping[Role, str] = field(default_factory=dict)

    @property
    def dimension(self) -> int:
        """d, the number of dimensions of a vector."""
        return int(self.model.get_embedding_dimension())

    @property
    def size(self) -> int:
        """The number of bytes of all weights in fp32."""
        return 4 * sum(int(weights.numel()) for weights in self.model.state_dict().values())

    @property
    def tokenizer(self) -> Any:
        """The fast Hugging Face tokenizer."""
        return self.model.tokenizer

    def encode(self, texts: Sequence[str], *, role: Role) -> Floats:
        """Return unit vectors [n, d], computed by sentence-transformers' method for the role.

        The library chooses the prompt, unless one was given: so comparisons notice if Keymatch
        chooses another one.
        """
        encode = self.model.encode_query if role is Role.QUERY else self.model.encode_document
        vectors: Floats = encode(
            list(texts),
            prompt=self.given_prompts.get(role),
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
    stored_precision: bool = False,
) -> TorchEncoder:
    """Load an encoder on the CPU, and try it with a short and a full-length text.

    `name` is a folder, `package:NAME` (an installed package that contains a sentence-transformers
    folder) or a name on the Hugging Face hub. A plain Hugging Face model gets mean pooling. Prompts
    default to the model's configuration. Weights in half precision become fp32, unless
    `stored_precision` keeps them.

    Raises `InvalidInput` if `name` cannot be loaded or used, if it has a setting that Keymatch
    would ignore, or if it cannot read `max_tokens`; `limited_by` is the user's option for that.
    """
    location = find_encoder(name)
    from sentence_transformers import SentenceTransformer

    from training.models import checkpoint_settings

    try:
        with without_progress_bars():
            model = SentenceTransformer(
                location.name,
                device="cpu",
                trust_remote_code=_is_safe_to_trust(Path(location.name)),
                local_files_only=location.offline,
                model_kwargs={"dtype": "auto" if stored_precision else "float32"},
            ).eval()
    except Exception as error:  # the libraries below raise OSError, ValueError and many others
        raise InvalidInput(
            f"encoder {name!r} cannot be loaded: {checkpoint_settings.first_line(error)}"
        ) from error
    if not stored_precision:
        model.float()  # also modules after the transformer, such as dense layers
    checkpoint_settings.require_supported(model, name)
    _use_eager_attention(model)
    _pad_on_the_right(model.tokenizer)
    limit = checkpoint_settings.token_limit(model)
    if max_tokens is not None and not 1 <= max_tokens <= (limit or max_tokens):
        raise InvalidInput(f"{limited_by} must lie in 1..{limit} for the encoder {name!r}")
    model.max_seq_length = max_tokens or limit or checkpoint_settings.UNLIMITED_TOKENS
    prompts = {Role.QUERY: query_prompt, Role.LABEL: label_prompt}
    given = {role: prompt for role, prompt in prompts.items() if prompt is not None}
    encoder = TorchEncoder(
        name=name,
        model=model,
        prompts=checkpoint_settings.prompts(model, given),
        max_tokens=model.max_seq_length,
        given_prompts=given,
    )
    checkpoint_settings.require_pooled_prompts(encoder)
    checkpoint_settings.require_room(encoder, dict.fromkeys(Role, encoder.max_tokens))
    checkpoint_settings.try_out(encoder)
    return encoder


def set_pooling(model: SentenceTransformer, pooling: str) -> None:
    """Set how the tokens' vectors become one; raises `InvalidInput` without a pooling module."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    for place, module in enumerate(model):
        if isinstance(module, Pooling):
            mode = _POOLINGS.get(pooling, pooling)
            model[place] = Pooling(module.embedding_dimension, pooling_mode=mode)
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
    """Whether all foreign modules of a folder are Keymatch's, and it contains no code.

    sentence-transformers loads foreign classes only if it is told to trust the folder.
    """
    try:
        modules = json.loads((folder / MODULES).read_bytes())
        foreign = {m["type"] for m in modules if not m["type"].startswith("sentence_transformers.")}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(foreign) and foreign <= _OURS and not any(folder.rglob("*.py"))


def _use_eager_attention(model: SentenceTransformer) -> None:
    """Choose plain attention on a CPU, where fused attention is slower for short texts."""
    import torch
    from transformers import PreTrainedModel

    if torch.cuda.is_available():
        return
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.set_attn_implementation("eager")


def _pad_on_the_right(tokenizer: Any) -> None:
    """Pad on the right, as training batches do; choose a padding token if there is none.

    Positions count from the left, so padding there would change a vector. Any token will do, since
    padding is masked. Causal language models often have none.
    """
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
