"""Loading an encoder: the padding of a causal language model, and the pooling of tokens."""

from pathlib import Path

import numpy as np
import pytest

from service.core.errors import InvalidInput
from service.core.types import Role
from tests.support.tiny.training import write_tiny_language_model
from training.evaluation.encode_texts import encode_texts
from training.models.torch_encoder import load_encoder, set_pooling

TEXTS = ["a", "a lamp", "a red tent for two"]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last-token"])
def test_padding_changes_no_vector_of_a_language_model(
    tmp_path: Path, family: str, pooling: str
) -> None:
    encoder = load_encoder(str(write_tiny_language_model(tmp_path, family=family)), max_tokens=32)
    set_pooling(encoder.model, pooling)
    alone = np.concatenate([encoder.encode([text], role=Role.QUERY) for text in TEXTS])
    assert encoder.encode(TEXTS, role=Role.QUERY) == pytest.approx(alone, abs=1e-5)
    assert encode_texts(encoder, TEXTS, role=Role.QUERY) == pytest.approx(alone, abs=1e-5)


def test_the_last_token_has_read_the_text_and_the_first_has_not(tmp_path: Path) -> None:
    encoder = load_encoder(str(write_tiny_language_model(tmp_path)), max_tokens=32)
    set_pooling(encoder.model, "cls")
    first = encoder.encode(TEXTS, role=Role.QUERY)
    assert first == pytest.approx(np.tile(first[:1], (3, 1)), abs=1e-5)
    set_pooling(encoder.model, "last-token")
    last = encoder.encode(TEXTS, role=Role.QUERY)
    assert np.abs(last[1] - last[0]).max() > 0.01


def test_an_encoder_that_does_not_pool_is_refused(tmp_path: Path) -> None:
    encoder = load_encoder(str(write_tiny_language_model(tmp_path)), max_tokens=32)
    del encoder.model[1]
    with pytest.raises(InvalidInput, match="this encoder has no pooling module"):
        set_pooling(encoder.model, "mean")
