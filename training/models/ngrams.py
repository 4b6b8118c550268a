"""Character n-grams: a learned vector of a text's spelling, added to the transformer's vector.

A transformer splits a rare name into tokens that mean little to it. The name's n-grams identify it,
and a table of their vectors learns quickly which of them belong together (FastText's subwords,
Bojanowski et al., 2017, Eq. 3). The encoder's vector becomes

    e(t) = normalize(f(t) + G(t)),    G(t) = sum over the n-grams g of t of W[hash(g)] / sqrt(|t|)

with f the transformer's unit vector and |t| the number of n-grams. W starts as random signs, so
<G(t), G(t')> approximates the share of n-grams that two texts have in common, even for words that
no training row has. All is computed from token ids, so the exported graph keeps its two inputs.

Shapes: n texts, t tokens, w characters of a token, c characters of the longest text, k n-grams of
it, d dimensions, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers.base.modules import Module
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from training.models.settings import NgramSettings

SENTENCE_EMBEDDING = "sentence_embedding"  # the feature by which modules pass the vector on
PADDING, BOUNDARY = 0, 1  # codes that stand for no character, and for the edge of a word
TOKEN_CHARACTERS = 16  # w; the rest of a longer token is ignored
_BASE, _MODULUS = 1_000_003, 2_147_483_647  # of the n-grams' hash; products fit into 64 bits
_JOINERS = frozenset("-_./+@&'")  # WordPiece splits a name at them; here it stays one word
_CONTINUES = "##"  # WordPiece's mark of a token that continues a word
_BEGINS = ("\u2581", "\u0120")  # marks of SentencePiece and byte-level BPE for the start of a word
_LOAD_OPTIONS = ("subfolder", "token", "cache_folder", "revision", "local_files_only")


class SavedModule(Module):  # type: ignore[misc]
    """A module of Keymatch that is saved as its `config_keys` and its weights."""

    def save(self, output_path: str, *_: Any, safe_serialization: bool = True, **__: Any) -> None:
        """Write config and weights, as `Module.save` of sentence-transformers does."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(cls, model_name_or_path: str, **where: Any) -> Self:
        """Read what `save` wrote, as `Module.load` of sentence-transformers does."""
        where = {key: where[key] for key in _LOAD_OPTIONS if key in where}
        module = cls(**cls.load_config(model_name_or_path, **where))
        loaded: Self = cls.load_torch_weights(model_name_or_path, model=module, **where)
        return loaded


class CharacterNgrams(SavedModule):
    """The last module of a sentence-transformers model: adds G(t) to its vector and normalizes.

    The buffer `characters` [V, w] spells each token of the vocabulary, and `joins` [V] marks tokens
    that join two parts of a name. An n-gram has `shortest` to `longest` characters within one word
    and its two boundaries. In training each n-gram is dropped with the probability `dropout`.
    """

    config_keys = ("dimension", "buckets", "shortest", "longest", "vocabulary", "dropout")

    def __init__(
        self,
        *,
        dimension: int,
        buckets: int,
        shortest: int,
        longest: int,
        vocabulary: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.dimension, self.buckets, self.vocabulary = dimension, buckets, vocabulary
        self.shortest, self.longest = shortest, longest
        spelling = torch.zeros(vocabulary, TOKEN_CHARACTERS, dtype=torch.int32)
        self.register_buffer("characters", spelling)
        self.register_buffer("joins", torch.zeros(vocabulary, dtype=torch.bool))
        self.table = nn.Embedding(buckets, dimension)  # W

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Replace f(t), the feature `sentence_embedding` [n, d], by e(t)."""
        meaning = normalize(features[SENTENCE_EMBEDDING].float(), dim=-1)
        spelling = self.spelling(features["input_ids"], features["attention_mask"])
        return {**features, SENTENCE_EMBEDDING: normalize(meaning + spelling, dim=-1)}

    def spelling(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return G(t) [n, d] of the texts with token ids [n, t]."""
        buckets, present = self.ngrams(ids, mask)  # [n, k] each
        if self.training and self.dropout:
            kept = torch.rand(present.shape, device=present.device) >= self.dropout
            present = present & kept
        counts = present.sum(dim=1)  # [n]
        scale = counts.clamp(min=1).float().rsqrt()[:, None]
        if torch.onnx.is_in_onnx_export():  # ONNX has no embedding_bag
            rows = self.table(buckets) * present[:, :, None].float()  # [n, k, d]
            return rows.sum(dim=1) * scale
        starts = counts.cumsum(0) - counts
        return scale * embedding_bag(buckets[present], self.table.weight, starts, mode="sum")

    def ngrams(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bucket of each n-gram [n, k], and a mask [n, k] of the slots that hold one."""
        text = self._characters_of(ids, mask)  # [n, c]
        inside = text > BOUNDARY
        value, unbroken = torch.zeros_like(text), torch.ones_like(inside)
        buckets, present = [], []
        for length in range(1, self.longest + 1):
            last = _shifted(text, length - 1)
            value = torch.remainder(value * _BASE + last, _MODULUS)
            if length >= self.shortest:
                buckets.append(torch.remainder(value, self.buckets))
                present.append((text > PADDING) & unbroken & (last > PADDING))
            if length > 1:  # longer n-grams have this character inside, where no boundary may be
                unbroken = unbroken & _shifted(inside, length - 1)
        return torch.cat(buckets, dim=1), torch.cat(present, dim=1)

    def _characters_of(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the characters [n, c] of the texts' tokens [n, t, w], joined without padding."""
        spelled = self.characters[ids].long() * mask[:, :, None]  # [n, t, w]
        # A token after a joiner continues the word, so its boundary is dropped.
        continues = torch.cat(
            [torch.zeros_like(mask[:, :1]).bool(), self.joins[ids][:, :-1]], dim=1
        )
        begins = torch.where(continues & (spelled[:, :, 0] == BOUNDARY), PADDING, spelled[:, :, 0])
        spread = torch.cat([begins[:, :, None], spelled[:, :, 1:]], dim=2).flatten(1)  # [n, t w]
        filled, width = spread > PADDING, spread.shape[1]
        # Padding is scattered into a last column, which is cut off.
        places = torch.where(filled, filled.long().cumsum(dim=1) - 1, width)
        room = torch.zeros_like(spread[:, :1]).expand(-1, width + 1).contiguous()
        text = room.scatter(1, places, spread)
        if torch.compiler.is_exporting():  # an exported graph's shapes may not depend on values
            return text
        return text[:, : filled.sum(dim=1).max() + 1]


def ngrams_of(model: nn.Module) -> CharacterNgrams | None:
    """Return the n-grams module of a model, None if it has none."""
    return next((part for part in model.modules() if isinstance(part, CharacterNgrams)), None)


def untrained_ngrams(tokenizer: Any, dimension: int, settings: NgramSettings) -> CharacterNgrams:
    """Return a module for a tokenizer's vocabulary; its table has random signs."""
    module = CharacterNgrams(
        dimension=dimension,
        buckets=settings.buckets,
        shortest=settings.shortest,
        longest=settings.longest,
        vocabulary=len(tokenizer),
        dropout=settings.dropout,
    )
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    characters, joins = spell(tokens, special=tokenizer.all_special_tokens)
    module.characters.copy_(torch.from_numpy(characters))
    module.joins.copy_(torch.from_numpy(joins))
    signs = torch.randint(0, 2, (settings.buckets, dimension)).float() * 2 - 1
    with torch.no_grad():
        module.table.weight.copy_(signs * settings.share / dimension**0.5)
    return module


def spell(
    tokens: Sequence[str], *, special: Collection[str]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return each token's characters as code points, [V, w], and whether it joins words, [V].

    In a WordPiece vocabulary a token begins a word unless it is marked as a continuation.
    SentencePiece and byte-level BPE mark the beginnings instead; that mark becomes the boundary. A
    special token is spelled as a boundary.
    """
    wordpiece = any(token.startswith(_CONTINUES) for token in tokens)
    characters = np.full((len(tokens), TOKEN_CHARACTERS), PADDING, np.int32)
    joins = np.zeros(len(tokens), np.bool_)
    for row, token in enumerate(tokens):
        if token in special:
            codes = [BOUNDARY]
        elif wordpiece:
            codes = [ord(character) for character in token.removeprefix(_CONTINUES)]
            joins[row] = token in _JOINERS
            if not (joins[row] or token.startswith(_CONTINUES)):
                codes = [BOUNDARY, *codes]
        else:
            codes = [BOUNDARY if character in _BEGINS else ord(character) for character in token]
        characters[row, : len(codes)] = codes[:TOKEN_CHARACTERS]
    return characters, joins


def _shifted(text: Tensor, by: int) -> Tensor:
    """Shift texts [n, c] to the left by `by` characters, with padding at the end."""
    return torch.cat([text[:, by:], torch.zeros_like(text[:, :by])], dim=1)
