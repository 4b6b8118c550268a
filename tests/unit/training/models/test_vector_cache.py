"""Vectors of a frozen encoder that are kept across runs."""

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from service.core.errors import InvalidData
from service.core.types import Floats, Role, Rows
from tests.support.tiny.training import DIMENSION
from training.evaluation.encode_texts import encode_texts
from training.models.encoder_location import VECTOR_CACHE
from training.models.ngrams import untrained_ngrams
from training.models.settings import NgramSettings
from training.models.tokens import TokenTable
from training.models.torch_encoder import load_encoder
from training.models.vector_cache import VectorCache, cache_of, fingerprint

TEXTS = ["red tent", "tent", "a much longer text of a red tent", "stove", "tent"]


class Encoder:
    """Counts the texts that it encodes; a vector is the text's number of tokens."""

    def __init__(self, table: TokenTable) -> None:
        self.table, self.encoded = table, 0

    def __call__(self, rows: Rows) -> Floats:
        self.encoded += len(rows)
        lengths = self.table.lengths[rows].astype(np.float32)
        return np.stack([lengths, self.table.ids[self.table.ends[rows]]], axis=1).astype(np.float32)


def table_of(*texts: list[int]) -> TokenTable:
    lengths = [len(text) for text in texts]
    return TokenTable(
        ids=np.concatenate([np.array(text, np.int32) for text in texts]),
        ends=np.concatenate([[0], np.cumsum(lengths)]),
    )


def test_a_text_is_encoded_once_across_runs(tmp_path: Path) -> None:
    cache = VectorCache(folder=tmp_path / "encoder")
    first = Encoder(table_of([1, 2], [3]))
    assert cache.vectors(first.table, first).tolist() == [[2, 1], [1, 3]]
    assert first.encoded == 2

    second = Encoder(table_of([3], [4, 4, 4], [1, 2]))
    assert cache.vectors(second.table, second).tolist() == [[1, 3], [3, 4], [2, 1]]
    assert second.encoded == 1

    third = Encoder(table_of([4, 4, 4]))
    assert cache.vectors(third.table, third).tolist() == [[3, 4]]
    assert third.encoded == 0


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    cache = VectorCache(folder=tmp_path / "encoder")
    encoder = Encoder(table_of([1, 2]))
    cache.vectors(encoder.table, encoder)
    (file,) = cache.folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-4])

    with pytest.raises(InvalidData, match=r"cannot be read; delete it") as error:
        cache.vectors(encoder.table, encoder)
    assert str(file) in str(error.value)


def test_encoders_differ_by_weights_modules_and_arithmetic() -> None:
    layer = nn.Linear(2, 2)
    known = fingerprint(layer, precision="fp32")
    assert fingerprint(layer, precision="fp32") == known
    assert fingerprint(layer, precision="bf16") != known
    assert fingerprint(nn.Sequential(layer), precision="fp32") != known
    layer.weight.data[0, 0] += 1
    assert fingerprint(layer, precision="fp32") != known


def test_nothing_is_kept_unless_a_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VECTOR_CACHE, raising=False)
    assert cache_of(nn.Linear(2, 2), precision="fp32") is None


def test_scoring_reads_the_transformer_from_the_cache(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(str(model))
    ngrams = untrained_ngrams(encoder.tokenizer, DIMENSION, NgramSettings(buckets=1 << 12))
    encoder.model.append(ngrams)
    plain = encode_texts(encoder, TEXTS, role=Role.QUERY)

    monkeypatch.setenv(VECTOR_CACHE, str(tmp_path / "vectors"))
    made = encode_texts(encoder, TEXTS[:3], role=Role.QUERY)
    read = encode_texts(encoder, TEXTS, role=Role.QUERY)

    np.testing.assert_allclose(made, plain[:3], atol=1e-6)
    np.testing.assert_allclose(read, plain, atol=1e-6)
    assert len(list((tmp_path / "vectors").rglob("*.safetensors"))) == 2
    assert len(encode_texts(encoder, [], role=Role.QUERY)) == 0
