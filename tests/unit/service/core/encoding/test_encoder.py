"""The ONNX encoder: token limit, prompts, batches, and the refusal of damaged files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import load, numpy_helper
from tokenizers import Tokenizer

from service.cli.check import check
from service.core.bundle.bundle import open_bundle
from service.core.encoding import encoder as encoder_module
from service.core.encoding.encoder import (
    OnnxEncoder,
    encode,
    encode_all,
    load_tokenizer,
    require_full_length,
)
from service.core.errors import BundleAltered, BundleUnsupported
from service.core.types import Role
from service.engine.loaded_bundle import load_bundle
from service.settings import EngineSettings
from tests.support.tiny.bundles import sign_again
from tests.support.tiny.encoder import (
    DIMENSION,
    VOCABULARY,
    TrigramEncoder,
    tiny_facts,
    write_tiny_encoder,
)

CLS, SEP = VOCABULARY["[CLS]"], VOCABULARY["[SEP]"]
TEXTS = ["tent", "a much longer text about hiking boots", "x", "two words", "tent"]

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    write_tiny_encoder(folder)
    return folder


@pytest.fixture(scope="module")
def tiny(folder: Path) -> OnnxEncoder:
    return OnnxEncoder(folder, tiny_facts())


def test_a_vector_equals_one_computed_by_hand(tiny: OnnxEncoder, folder: Path) -> None:
    """The vector is the mean embedding of [CLS], the letters and [SEP], divided by its length."""
    (letters,) = (
        numpy_helper.to_array(tensor)
        for tensor in load(folder / "encoder.onnx").graph.initializer
        if tensor.name == "letters"
    )
    mean = letters[[CLS, VOCABULARY["a"], VOCABULARY["##b"], SEP]].mean(axis=0)
    (vector,) = encode(tiny, ["ab"], role=Role.QUERY)
    assert vector == pytest.approx(mean / np.linalg.norm(mean), abs=1e-6)


def test_no_texts_have_no_vectors_of_the_manifests_dimension(folder: Path) -> None:
    encoder = OnnxEncoder(folder, tiny_facts(fingerprint="print"))
    assert (encoder.dimension, encoder.fingerprint) == (DIMENSION, "print")
    assert encode(encoder, [], role=Role.QUERY).shape == (0, DIMENSION)
    assert encode_all(encoder, [], role=Role.QUERY, threads=2).shape == (0, DIMENSION)


# Tokens ----------------------------------------------------------------------------------


def test_a_long_text_is_cut_between_its_special_tokens(folder: Path) -> None:
    encoder = OnnxEncoder(folder, tiny_facts(max_tokens=5))
    (short, long) = encoder.tokenize(["ab", "abcdefgh"], role=Role.QUERY)
    assert short == [CLS, VOCABULARY["a"], VOCABULARY["##b"], SEP]
    assert long == [CLS, VOCABULARY["a"], VOCABULARY["##b"], VOCABULARY["##c"], SEP]
    first, second = encode(encoder, ["abcXXXX", "abcYY"], role=Role.QUERY)
    assert np.array_equal(first, second)


def test_each_role_has_its_own_prompt(folder: Path) -> None:
    plain = OnnxEncoder(folder, tiny_facts())
    facts = tiny_facts(query_prompt="query: ", label_prompt="passage: ")
    prompted = OnnxEncoder(folder, facts)
    for role, prompt in ((Role.QUERY, "query: "), (Role.LABEL, "passage: ")):
        expected = plain.tokenize([prompt + "tent"], role=role)
        assert prompted.tokenize(["tent"], role=role) == expected
    assert plain.tokenize(["tent"], role=Role.QUERY) == plain.tokenize(["tent"], role=Role.LABEL)


# Batches ---------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(any_text, min_size=1, max_size=40))
def test_several_texts_have_the_unit_vectors_of_each_alone_in_order(
    tiny: OnnxEncoder, texts: list[str]
) -> None:
    together = encode(tiny, texts, role=Role.QUERY)
    assert (together.shape, together.dtype) == ((len(texts), DIMENSION), np.float32)
    assert np.linalg.norm(together, axis=1) == pytest.approx(1.0, abs=1e-5)
    alone = np.concatenate([encode(tiny, [text], role=Role.QUERY) for text in texts])
    assert together == pytest.approx(alone, abs=1e-5)


def batches_of(
    encoder: OnnxEncoder, tokens: list[list[int]], *, together: bool, patch: pytest.MonkeyPatch
) -> list[list[int]]:
    """Embed `tokens`; return the texts' token counts in each batch that the graph gets."""
    seen: list[list[int]] = []
    run = encoder.embed_batch
    patch.setattr(
        encoder, "embed_batch", lambda batch: (seen.append(list(map(len, batch))), run(batch))[1]
    )
    encoder.embed(tokens, together=together)
    return seen


@pytest.mark.parametrize(
    ("quantization", "batch_invariant", "together", "sizes"),
    [
        ("none", True, True, [5]),
        ("int8", False, True, [1] * 5),
        ("none", True, False, [1] * 5),
        ("static-int8", True, False, [5]),
    ],
)
def test_batches_run_if_they_change_no_bit_or_if_the_caller_allows_the_last_bits(
    folder: Path,
    quantization: str,
    batch_invariant: bool,
    together: bool,
    sizes: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = OnnxEncoder(
        folder, tiny_facts(quantization=quantization, batch_invariant=batch_invariant)
    )
    tokens = encoder.tokenize(TEXTS, role=Role.QUERY)
    seen = batches_of(encoder, tokens, together=together, patch=monkeypatch)
    assert list(map(len, seen)) == sizes


def test_a_batch_holds_texts_of_similar_length(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "_BATCH_TEXTS", 2)
    tokens = [[1] * 5, [1], [1] * 9, [1] * 2]
    encoder = OnnxEncoder(folder, tiny_facts(batch_invariant=True))
    assert batches_of(encoder, tokens, together=True, patch=monkeypatch) == [[1, 2], [5, 9]]


@pytest.mark.parametrize("threads", [1, 3])
def test_encode_all_keeps_the_order_and_reports_every_text(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "_CHUNK_TEXTS", 4)
    encoder = TrigramEncoder()
    texts = [f"{'long ' * (number % 3)}text {number}" for number in range(11)]
    done: list[int] = []
    vectors = encode_all(encoder, texts, role=Role.LABEL, threads=threads, progress=done.append)
    assert np.array_equal(vectors, encode(encoder, texts, role=Role.LABEL))
    assert done == [4, 8, 11]


def test_an_exception_in_a_thread_reaches_the_caller() -> None:
    class Broken(TrigramEncoder):
        def embed(self, tokens: list[list[int]], *, together: bool = False) -> np.ndarray:
            raise MemoryError

    with pytest.raises(MemoryError):
        encode_all(Broken(), ["a"], role=Role.QUERY, threads=2)


# Refusals --------------------------------------------------------------------------------


def test_a_graph_of_another_dimension_is_unsupported(folder: Path) -> None:
    with pytest.raises(BundleUnsupported, match=r"encoder\.onnx produces vectors of 16 dimensions"):
        OnnxEncoder(folder, tiny_facts(dimension=24))


@pytest.mark.parametrize("name", ["encoder.onnx", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"{}", None])
def test_a_file_that_cannot_be_loaded_is_named(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    write_tiny_encoder(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BundleAltered, match=name):
        OnnxEncoder(tmp_path, tiny_facts())


def test_the_tokenizer_says_which_end_of_a_long_text_is_cut(folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(9, direction="left")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    right = load_tokenizer(folder / "tokenizer.json", max_tokens=4)
    left = load_tokenizer(tmp_path / "tokenizer.json", max_tokens=4)
    assert right.encode("a b c").tokens == ["[CLS]", "a", "b", "[SEP]"]
    assert left.encode("a b c").tokens == ["[CLS]", "b", "c", "[SEP]"]


def test_a_graph_that_reads_less_than_the_limit_is_not_served(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    """RoBERTa has 514 positions but reads 512 tokens, and older manifests say 514."""
    folder = make_bundle(max_tokens=32)
    write_tiny_encoder(folder, positions=31)
    sign_again(folder)
    bundle = open_bundle(folder)
    encoder = OnnxEncoder(folder, bundle.manifest.encoder)
    assert encode(encoder, ["tent"], role=Role.QUERY).shape == (1, DIMENSION)
    for refused in (
        lambda: require_full_length(bundle, encoder),
        lambda: load_bundle(folder, None, EngineSettings(threads=1)),
        lambda: check(bundle=folder),
    ):
        with pytest.raises(BundleUnsupported, match="fails on a text of 32 tokens, its limit"):
            refused()
    write_tiny_encoder(folder, positions=32)
    sign_again(folder)
    assert check(bundle=folder) == 0
