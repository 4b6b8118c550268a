"""Tables of token ids, buckets of similar length, and the cache of a frozen encoder's vectors."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from service.core.errors import InvalidData
from service.core.types import Floats, Role, Rows
from tests.support.tiny.training import DIMENSION
from training.evaluation.encode_texts import encode_texts
from training.models.encoder_location import VECTOR_CACHE
from training.models.ngrams import untrained_ngrams
from training.models.settings import NgramSettings
from training.models.tokens import TokenTable, buckets, by_length, concatenate, padded
from training.models.torch_encoder import load_encoder
from training.models.vector_cache import VectorCache, cache_of, fingerprint

TEXTS = ["red tent", "tent", "a much longer text of a red tent", "stove", "tent"]


def table(*texts: list[int]) -> TokenTable:
    return TokenTable(
        ids=np.array([token for text in texts for token in text], np.int32),
        ends=np.cumsum([0, *(len(text) for text in texts)]),
    )


def test_texts_come_back_as_they_were_given_padded_or_by_length() -> None:
    three = table([1, 2, 3], [4], [5, 6])
    both = concatenate([three, table([7, 8])])
    assert [both.of(text).tolist() for text in range(len(both))] == [[1, 2, 3], [4], [5, 6], [7, 8]]
    inputs = padded(three, np.array([0, 1]), padding=9, device="cpu")
    assert inputs["input_ids"].tolist() == [[1, 2, 3], [4, 9, 9]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert by_length(three, np.array([0, 1, 2])).tolist() == [1, 2, 0]


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60).map(sorted),
    budget=st.integers(1, 400),
)
def test_buckets_hold_all_and_fit_the_budget_if_one_text_does(
    lengths: list[int], budget: int
) -> None:
    cuts = list(buckets(np.array(lengths), budget=budget))
    places = [place for cut in cuts for place in range(cut.start, cut.stop)]
    assert places == list(range(len(lengths)))
    for cut in cuts:
        size = cut.stop - cut.start
        assert size >= 1
        assert size == 1 or size * lengths[cut.stop - 1] <= budget


class Encoder:
    """Counts the texts that it encodes; a text's vector is its number of tokens."""

    def __init__(self, table: TokenTable) -> None:
        self.table, self.encoded = table, 0

    def __call__(self, rows: Rows) -> Floats:
        self.encoded += len(rows)
        lengths = self.table.lengths[rows].astype(np.float32)
        return np.stack([lengths, self.table.ids[self.table.ends[rows]]], axis=1).astype(np.float32)


def test_a_text_is_encoded_once_across_runs_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    cache = VectorCache(folder=tmp_path / "encoder")
    for texts, vectors, encoded in (
        (([1, 2], [3]), [[2, 1], [1, 3]], 2),
        (([3], [4, 4, 4], [1, 2]), [[1, 3], [3, 4], [2, 1]], 1),
        (([4, 4, 4],), [[3, 4]], 0),
    ):
        encoder = Encoder(table(*texts))
        assert cache.vectors(encoder.table, encoder).tolist() == vectors
        assert encoder.encoded == encoded
    file = next(cache.folder.glob("*.safetensors"))
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


def test_scoring_reads_the_transformer_from_the_cache(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(str(model))
    ngrams = untrained_ngrams(encoder.tokenizer, DIMENSION, NgramSettings(buckets=1 << 12))
    encoder.model.append(ngrams)
    monkeypatch.delenv(VECTOR_CACHE, raising=False)
    assert cache_of(encoder.model, precision="fp32") is None, "no folder is named"
    plain = encode_texts(encoder, TEXTS, role=Role.QUERY)
    monkeypatch.setenv(VECTOR_CACHE, str(tmp_path / "vectors"))
    made = encode_texts(encoder, TEXTS[:3], role=Role.QUERY)
    read = encode_texts(encoder, TEXTS, role=Role.QUERY)
    np.testing.assert_allclose(made, plain[:3], atol=1e-6)
    np.testing.assert_allclose(read, plain, atol=1e-6)
    assert len(list((tmp_path / "vectors").rglob("*.safetensors"))) == 2
    assert len(encode_texts(encoder, [], role=Role.QUERY)) == 0
