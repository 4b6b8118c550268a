"""Character n-grams: extraction, their share of the vectors, saving, and export."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from export.encoder.onnx import trace
from export.encoder.quantize import quantize
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.errors import InvalidInput
from service.core.types import Role
from tests.support.tiny.encoder import tiny_facts
from tests.support.tiny.training import DIMENSION
from training.models.ngrams import BOUNDARY, CharacterNgrams, spell, untrained_ngrams
from training.models.settings import NgramSettings
from training.models.torch_encoder import TorchEncoder, load_encoder

BUCKETS = 1 << 12
B = chr(BOUNDARY)
TEXTS = ["red tent", "a", "", "libreoffice-writer 7", "green boots and a rope"]


@pytest.fixture
def encoder(model: Path) -> TorchEncoder:
    return load_encoder(str(model))


@pytest.fixture
def ngrams(encoder: TorchEncoder) -> CharacterNgrams:
    torch.manual_seed(1)
    return untrained_ngrams(encoder.tokenizer, DIMENSION, NgramSettings(buckets=BUCKETS))


def tokens(encoder: TorchEncoder, texts: list[str]) -> dict[str, torch.Tensor]:
    found: Any = encoder.tokenizer(texts, padding=True, return_tensors="pt")
    return {name: found[name] for name in ("input_ids", "attention_mask")}


def bucket(ngram: str) -> int:
    """Return the hash of an n-gram, computed character by character."""
    value = 0
    for character in ngram:
        value = (value * 1_000_003 + ord(character)) % 2_147_483_647
    return value % BUCKETS


def expected(text: str) -> list[int]:
    """Return the buckets of all n-grams of a text's words, with marks at both word boundaries."""
    return sorted(
        bucket(word[start : start + length])
        for word in (f"{B}{word}{B}" for word in text.split())
        for length in (3, 4, 5)
        for start in range(len(word) - length + 1)
    )


def plain(*words: str) -> tuple[torch.Tensor, list[str]]:
    """Return the ids of tokens, and their vocabulary, which marks continuations like WordPiece."""
    vocabulary = ["[PAD]", "[CLS]", "[SEP]", "re", "##d", "tent", "##s", "a", "-", ":"]
    return torch.tensor([[vocabulary.index(word) for word in words]]), vocabulary


def module_of(vocabulary: list[str]) -> CharacterNgrams:
    module = CharacterNgrams(
        dimension=4, buckets=BUCKETS, shortest=3, longest=5, vocabulary=len(vocabulary)
    )
    characters, joins = spell(vocabulary, special=("[PAD]", "[CLS]", "[SEP]"))
    module.characters.copy_(torch.from_numpy(characters))
    module.joins.copy_(torch.from_numpy(joins))
    return module


def test_tokens_are_spelled_with_the_edges_of_words() -> None:
    def texts(*tokens: str, special: tuple[str, ...] = ()) -> list[str]:
        characters, _ = spell(tokens, special=special)
        return ["".join(chr(code) for code in row if code) for row in characters]

    assert texts("[CLS]", "tent", "##s", "##", special=("[CLS]",)) == [B, f"{B}tent", "s", ""]
    assert texts("##s", "-", ":") == ["s", "-", f"{B}:"], "a name goes on behind a hyphen"
    marked = texts("</s>", "\u2581tent", "s", "\u2581", special=("</s>",))
    assert marked == [B, f"{B}tent", "s", B]
    assert texts("\u0120tent", "s", "-") == [f"{B}tent", "s", "-"]
    assert len(texts("x" * 99)[0]) == 16, "a long token is cut"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("re", "##d", "tent", "##s"), "red tents"),
        (("a", "tent"), "a tent"),
        (("re", "-", "tent", ":", "a"), "re-tent : a"),
        (("a",), "a"),
        ((), ""),
    ],
)
def test_the_ngrams_of_a_text_are_those_of_its_words(words: tuple[str, ...], text: str) -> None:
    ids, vocabulary = plain("[CLS]", *words, "[SEP]")
    buckets, found = module_of(vocabulary).ngrams(ids, torch.ones_like(ids))
    assert sorted(buckets[found].tolist()) == expected(text)


def test_padding_and_neighbours_change_nothing() -> None:
    ids, vocabulary = plain("[CLS]", "tent", "[SEP]", "[PAD]", "re")
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    longer, _ = plain("[CLS]", "re", "##d", "tent", "##s")
    module = module_of(vocabulary)
    alone = module.spelling(ids[:, :3], mask[:, :3])
    beside = module.spelling(torch.cat([longer, ids]), torch.cat([torch.ones_like(mask), mask]))
    torch.testing.assert_close(beside[1:], alone)


def test_untrained_ngrams_say_how_many_two_texts_share(encoder: TorchEncoder) -> None:
    torch.manual_seed(0)
    settings = NgramSettings(buckets=1 << 13, share=0.5)
    module = untrained_ngrams(encoder.tokenizer, 1024, settings)
    inputs = tokens(encoder, ["keymatch tent", "keymatch boots", "quick jump"])
    spelled = module.spelling(*inputs.values())
    alike = (spelled @ spelled.T).detach().numpy()
    assert np.diag(alike) == pytest.approx([0.25] * 3, rel=0.2), "share squared"
    assert alike[0, 1] > 0.08 > abs(alike[0, 2]) + 0.02


def test_dropout_leaves_ngrams_out_in_training_only(encoder: TorchEncoder) -> None:
    settings = NgramSettings(buckets=BUCKETS, dropout=0.5)
    module = untrained_ngrams(encoder.tokenizer, DIMENSION, settings)
    inputs = tokens(encoder, TEXTS).values()
    dropped = module.train().spelling(*inputs)
    kept = module.eval().spelling(*inputs)
    assert not torch.allclose(dropped, kept)
    torch.testing.assert_close(module.spelling(*inputs), kept)


def test_a_text_without_ngrams_keeps_its_meaning(ngrams: CharacterNgrams) -> None:
    meant = torch.nn.functional.normalize(torch.rand(2, DIMENSION), dim=1)
    nothing = torch.zeros(2, 3, dtype=torch.long)
    features = {"sentence_embedding": meant, "input_ids": nothing, "attention_mask": nothing}
    torch.testing.assert_close(ngrams(features)["sentence_embedding"], meant)


def test_a_folder_keeps_them(
    encoder: TorchEncoder, ngrams: CharacterNgrams, tmp_path: Path
) -> None:
    before = encoder.model.encode(TEXTS)
    encoder.model.append(ngrams)
    vectors = encoder.model.encode(TEXTS)
    encoder.model.save(str(tmp_path / "model"), create_model_card=False)
    folder = tmp_path / "model"
    again = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    assert again.encode(TEXTS) == pytest.approx(vectors, abs=1e-6)
    assert load_encoder(str(folder)).model.encode(TEXTS) == pytest.approx(vectors, abs=1e-6)
    (folder / "training.models.ngrams.py").write_text("raise SystemExit('run')")
    with pytest.raises(InvalidInput, match="third-party code"):
        load_encoder(str(folder))
    assert not np.allclose(vectors[0], before[0])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)


def test_the_exported_graph_reads_them_too(
    encoder: TorchEncoder, ngrams: CharacterNgrams, tmp_path: Path
) -> None:
    encoder.model.append(ngrams)
    trace(encoder, tmp_path / "fp32.onnx")
    encoder.tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    theirs = encoder.encode(TEXTS, role=Role.QUERY)
    for quantization in ("none", "int8", "static-int8"):
        quantize(
            tmp_path / "fp32.onnx",
            tmp_path / "encoder.onnx",
            quantization,
            calibration=encoder.tokenizer(TEXTS)["input_ids"],
        )
        opened = OnnxEncoder(tmp_path, tiny_facts(dimension=DIMENSION, max_tokens=32))
        ours = np.concatenate([encode(opened, [text], role=Role.QUERY) for text in TEXTS])
        assert (ours * theirs).sum(axis=1).min() > 0.99
        if quantization == "none":
            assert ours == pytest.approx(theirs, abs=1e-5)
            together = opened.embed(opened.tokenize(TEXTS, role=Role.QUERY), together=True)
            assert together == pytest.approx(theirs, abs=1e-5), "texts of a batch keep their own"
