"""Two encoders small enough for any test.

`write_tiny_encoder` writes a real ONNX graph with a real tokenizer: a table of letter embeddings,
their mean, and the L2 norm. `TrigramEncoder` needs no files and counts what it encodes.

Shapes: n texts, t tokens, d dimensions, v entries of the vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase, digits
from zlib import crc32

import numpy as np
from onnx import TensorProto, helper, save
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from service.core.bundle.manifest import EncoderFacts
from service.core.types import Floats, Role
from tests.support.tiny.graphs import graph_of

DIMENSION = 16
SPECIAL = ("[UNK]", "[CLS]", "[SEP]")
VOCABULARY = {
    token: number
    for number, token in enumerate(
        [*SPECIAL, *ascii_lowercase, *digits, *(f"##{sign}" for sign in ascii_lowercase + digits)]
    )
}


def write_tiny_encoder(
    folder: Path, *, dimension: int = DIMENSION, seed: int = 0, positions: int | None = None
) -> None:
    """Write `encoder.onnx` and `tokenizer.json`; different seeds give different encoders.

    With `positions`, the graph fails on texts with more tokens, like a transformer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    letters = np.random.default_rng(seed).standard_normal((len(VOCABULARY), dimension))
    save(_graph(letters.astype(np.float32), positions), folder / "encoder.onnx")
    tiny_tokenizer().save(str(folder / "tokenizer.json"))


def tiny_tokenizer() -> Tokenizer:
    """Return a tokenizer that splits words into letters, between [CLS] and [SEP]."""
    tokenizer = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, VOCABULARY[token]) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def tiny_facts(*, dimension: int = DIMENSION, max_tokens: int = 32, **changed) -> EncoderFacts:
    """Return the manifest's entry of the tiny encoder, with the fields `changed` replaced."""
    facts = {
        "name": "tiny",
        "fingerprint": "f" * 64,
        "quantization": "none",
        "batch_invariant": True,
        "query_prompt": "",
        "label_prompt": "",
    }
    return EncoderFacts(dimension=dimension, max_tokens=max_tokens, **{**facts, **changed})


def _graph(letters: Floats, positions: int | None):
    """Build the ONNX model: gather [n, t, d], mean over the mask [n, d], L2 norm [n, d]."""
    constants = {
        "letters": letters,
        "last_axis": np.array([-1], np.int64),
        "token_axis": np.array([1], np.int64),
    }
    embedding = [helper.make_node("Gather", ["letters", "input_ids"], ["embedded"])]
    if positions is not None:  # adds zeros from a table that limits the number of tokens
        constants["positions"] = np.zeros((positions, 1), np.float32)
        constants["first"] = np.zeros(1, np.int64)
        embedding = [
            helper.make_node("Gather", ["letters", "input_ids"], ["letters_of_tokens"]),
            helper.make_node("Shape", ["input_ids"], ["length"], start=1, end=2),
            helper.make_node("Slice", ["positions", "first", "length", "first"], ["present"]),
            helper.make_node("Add", ["letters_of_tokens", "present"], ["embedded"]),
        ]
    nodes = [
        *embedding,
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last_axis"], ["mask_per_token"]),
        helper.make_node("Mul", ["embedded", "mask_per_token"], ["counted"]),
        helper.make_node("ReduceSum", ["counted", "token_axis"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "token_axis"], ["tokens"], keepdims=1),
        helper.make_node("Div", ["sum", "tokens"], ["mean"]),
        helper.make_node("LpNormalization", ["mean"], ["vectors"], axis=-1, p=2),
    ]
    text_by_token = ["texts", "tokens_per_text"]
    return graph_of(
        nodes,
        {"input_ids": text_by_token, "attention_mask": text_by_token},
        {"vectors": ["texts", letters.shape[1]]},
        constants,
        input_ids=TensorProto.INT64,
        attention_mask=TensorProto.INT64,
    )


class TrigramEncoder:
    """Encodes a text as the normalized sum of one random direction per character trigram.

    Equal texts have equal vectors, and texts with common trigrams have similar ones. `encoded`
    counts the encoded texts.
    """

    def __init__(self, *, dimension: int = DIMENSION, fingerprint: str = "trigrams") -> None:
        self.dimension = dimension
        self.fingerprint = fingerprint
        self.encoded = 0
        self._directions = np.random.default_rng(7).standard_normal((1024, dimension))

    def tokenize(self, texts: Sequence[str], *, role: Role) -> list[list[int]]:
        return [_trigrams(f"  {text}  ") for text in texts]

    def embed(self, tokens: list[list[int]], *, together: bool = False) -> Floats:
        self.encoded += len(tokens)
        vectors = np.empty((len(tokens), self.dimension), np.float32)
        for row, trigrams in enumerate(tokens):
            total = self._directions[trigrams].sum(axis=0)
            vectors[row] = total / np.linalg.norm(total)
        return vectors


def _trigrams(text: str) -> list[int]:
    return [crc32(text[i : i + 3].encode()) % 1024 for i in range(len(text) - 2)]
