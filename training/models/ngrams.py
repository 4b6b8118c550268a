"""Character n-grams beside the transformer: what a text is spelled like, in the same vector.

A transformer reads a rare name as a few pieces that mean little to it. The name's n-grams are its
own, and a table with a vector for each learns in seconds which of them belong together (FastText's
subwords, Bojanowski et al., 2017, Eq. 3). The encoder's vector becomes

    e(t) = normalize(f(t) + G(t)),    G(t) = sum over the n-grams g of t of W[hash(g)] / sqrt(|t|)

with f the transformer's unit vector and |t| the number of n-grams. W starts as random signs, so
that G(t) G(t') is near to the share of n-grams that two texts have in common, for words that no
training row has, too. All of it is computed from token ids: a text needs no second tokenizer, and
the exported graph keeps its two inputs.

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

MEANT = "sentence_embedding"  # the feature that a model's modules hand on as its vector
NOTHING, BOUNDARY = 0, 1  # beside the characters: no character, and the edge of a word
TOKEN_CHARACTERS = 16  # w; what a longer token has beyond them is not read
_BASE, _MODULUS = 1_000_003, 2_147_483_647  # of the hash; products fit 64 bits
_JOINERS = frozenset("-_./+@&'")  # WordPiece cuts a name at them; to us it stays one word
_CONTINUES = "##"  # how WordPiece marks a token inside a word
_PLACE = ("subfolder", "token", "cache_folder", "revision", "local_files_only")  # `load`'s
_BEGINS = ("\u2581", "\u0120")  # how SentencePiece and byte-level BPE mark one that begins a word


class CharacterNgrams(Module):  # type: ignore[misc]
    """A sentence-transformers module behind a model's others; see above.

    `characters` [V, w] spells the vocabulary, and `joins` [V] marks what stands inside of names.
    n-grams of `shortest` to `longest` characters lie inside a word and its two boundaries.
    `dropout` is each one's chance to be left out of a text in training.
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
        """Replace f(t), the `sentence_embedding` [n, d], by e(t)."""
        meant = normalize(features[MEANT].float(), dim=-1)
        spelled = self.spelled(features["input_ids"], features["attention_mask"])
        return {**features, MEANT: normalize(meant + spelled, dim=-1)}

    def spelled(self, ids: Tensor, mask: Tensor) -> Tensor:
        """G(t), [n, d], of token ids [n, t]."""
        buckets, found = self.ngrams(ids, mask)  # [n, k] each
        if self.training and self.dropout:
            found = found & (torch.rand(found.shape, device=found.device) >= self.dropout)
        counts = found.sum(dim=1)  # [n]
        scale = counts.clamp(min=1).float().rsqrt()[:, None]
        if torch.onnx.is_in_onnx_export():  # which has no bags
            rows = self.table(buckets) * found[:, :, None].float()  # [n, k, d]
            return rows.sum(dim=1) * scale
        starts = counts.cumsum(0) - counts
        return scale * embedding_bag(buckets[found], self.table.weight, starts, mode="sum")

    def ngrams(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The bucket of each n-gram, and which of the places [n, k] hold one."""
        text = self._characters_of(ids, mask)  # [n, c]
        inside = text > BOUNDARY
        value, unbroken = torch.zeros_like(text), torch.ones_like(inside)
        buckets, found = [], []
        for length in range(1, self.longest + 1):
            last = _later(text, length - 1)
            value = torch.remainder(value * _BASE + last, _MODULUS)
            if length >= self.shortest:
                buckets.append(torch.remainder(value, self.buckets))
                found.append((text > NOTHING) & unbroken & (last > NOTHING))
            if length > 1:  # what is last now will stand inside the next
                unbroken = unbroken & _later(inside, length - 1)
        return torch.cat(buckets, dim=1), torch.cat(found, dim=1)

    def _characters_of(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The characters [n, c] of texts, without the gaps between the tokens' [n, t, w]."""
        spelled = self.characters[ids].long() * mask[:, :, None]  # [n, t, w]
        # What follows a joiner goes on with its word, so its boundary is none.
        begun = torch.cat([torch.zeros_like(mask[:, :1]).bool(), self.joins[ids][:, :-1]], dim=1)
        begins = torch.where(begun & (spelled[:, :, 0] == BOUNDARY), NOTHING, spelled[:, :, 0])
        spread = torch.cat([begins[:, :, None], spelled[:, :, 1:]], dim=2).flatten(1)  # [n, t w]
        filled, width = spread > NOTHING, spread.shape[1]
        # Places that hold none are sent behind all that may hold one.
        places = torch.where(filled, filled.long().cumsum(dim=1) - 1, width)
        room = torch.zeros_like(spread[:, :1]).expand(-1, width + 1).contiguous()
        text = room.scatter(1, places, spread)
        if torch.compiler.is_exporting():  # where no shape may depend on a value
            return text
        return text[:, : filled.sum(dim=1).max() + 1]

    def save(self, output_path: str, *_: Any, safe_serialization: bool = True, **__: Any) -> None:
        """See `Module.save`."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(cls, model_name_or_path: str, **where: Any) -> Self:
        """See `Module.load`."""
        where = {key: where[key] for key in _PLACE if key in where}
        module = cls(**cls.load_config(model_name_or_path, **where))
        loaded: Self = cls.load_torch_weights(model_name_or_path, model=module, **where)
        return loaded


def ngrams_of(model: nn.Module) -> CharacterNgrams | None:
    """The n-grams that a model has beside its transformer, if any."""
    return next((part for part in model.modules() if isinstance(part, CharacterNgrams)), None)


def untrained(tokenizer: Any, dimension: int, settings: NgramSettings) -> CharacterNgrams:
    """A module for a tokenizer's vocabulary, its table still of random signs."""
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
    """The characters of each token as code points, [V, w], and whether it joins words, [V].

    A token begins a word unless WordPiece marks it as going on with one; where a vocabulary marks
    the beginnings instead, as SentencePiece and byte-level BPE do, the mark is the boundary. A
    special token is a boundary.
    """
    wordpiece = any(token.startswith(_CONTINUES) for token in tokens)
    characters = np.full((len(tokens), TOKEN_CHARACTERS), NOTHING, np.int32)
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


def _later(text: Tensor, by: int) -> Tensor:
    """What stands `by` places later [n, c], nothing behind the end."""
    return torch.cat([text[:, by:], torch.zeros_like(text[:, :by])], dim=1)
