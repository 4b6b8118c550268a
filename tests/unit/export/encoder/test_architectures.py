"""For each architecture and pooling, exported vectors equal those of sentence-transformers.

Graphs too large for one file are split during the export, but refused as its result.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sentence_transformers import SentenceTransformer

from export.encoder import onnx, onnx_graph
from export.encoder.export import (
    EncoderOptions,
    export_encoder,
    facts,
    save_tokenizer,
)
from export.encoder.onnx import trace
from export.encoder.onnx_graph import OnnxGraph
from export.encoder.parity import Tolerance
from export.encoder.quantize import quantize
from export.exported_encoder import ExportedEncoder
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.errors import InvalidInput
from service.core.types import Floats, Role
from tests.support.tiny.checkpoints import (
    FAMILIES,
    MAX_TOKENS,
    POOLINGS,
    write_checkpoint,
)
from tests.support.tiny.encoder import write_tiny_encoder
from tests.support.tiny.training import tiny_dataset
from training.models.torch_encoder import TorchEncoder, load_encoder

README = Path(__file__).parents[4] / "export/README.md"
PROMPTS = {"query": "q ", "document": "d "}
# The last text is truncated; its beginning and its end differ.
TEXTS = ("a", "red tent", "large boots 22", " ".join(f"word {number}" for number in range(30)))
QUICK = {*(("bert", pooling) for pooling in POOLINGS), ("roberta", "mean")}
CASES = [
    pytest.param(family, pooling, marks=[] if (family, pooling) in QUICK else pytest.mark.slow)
    for family in FAMILIES
    for pooling in POOLINGS
]


def exported(encoder: TorchEncoder, target: Path, *, quantization: str = "none") -> ExportedEncoder:
    options = EncoderOptions(quantization=quantization, parity_sample=40, threads=1)
    quiet = Console(quiet=True)
    return export_encoder(encoder, tiny_dataset(), target, options=options, console=quiet)


def own_vectors(checkpoint: Path, role: Role) -> Floats:
    """Return the vectors [n, d] of sentence-transformers' own `encode`, one text at a time."""
    model = SentenceTransformer(str(checkpoint), device="cpu")
    model.float()
    model.max_seq_length = MAX_TOKENS
    method = model.encode_query if role is Role.QUERY else model.encode_document
    return np.stack([method(text, normalize_embeddings=True) for text in TEXTS])


@pytest.mark.parametrize(("family", "pooling"), CASES)
def test_exported_vectors_are_the_librarys(family: str, pooling: str, tmp_path: Path) -> None:
    """In static int8 they are close, and a text's bits do not depend on its batch.

    RoBERTa's limit of tokens is only stated by the size of its position table.
    """
    limit = None if family == "roberta" else MAX_TOKENS
    checkpoint = write_checkpoint(
        tmp_path, family=family, pooling=pooling, prompts=PROMPTS, max_tokens=limit
    )
    encoder = load_encoder(str(checkpoint))
    graph, tokenizer = tmp_path / "encoder.onnx", tmp_path / "tokenizer.json"
    trace(encoder, graph)
    save_tokenizer(encoder, tokenizer)
    fp32 = OnnxEncoder(tmp_path, facts(encoder, tmp_path, quantization="none"))
    for role in (Role.QUERY, Role.LABEL):
        own = own_vectors(checkpoint, role)
        tokens = fp32.tokenize(TEXTS, role=role)
        assert max(map(len, tokens)) == MAX_TOKENS
        assert fp32.embed(tokens) == pytest.approx(own, abs=2e-6)
        assert fp32.embed(tokens, together=True) == pytest.approx(own, abs=2e-6)

    folder = tmp_path / "int8"
    folder.mkdir()
    quantize(graph, folder / graph.name, "static-int8", calibration=tokens)
    shutil.copyfile(tokenizer, folder / tokenizer.name)
    int8 = OnnxEncoder(folder, facts(encoder, folder, quantization="static-int8"))
    alone = np.concatenate([int8.embed_batch([ids]) for ids in tokens * 3])
    assert np.array_equal(int8.embed_batch(tokens * 3), alone)
    assert (alone[: len(TEXTS)] * own).sum(axis=1).mean() > Tolerance().cosine


def test_the_documented_table_is_what_is_tested() -> None:
    table = [line for line in README.read_text().splitlines() if line.startswith("| ")]
    [head] = [line for line in table if line.startswith("| architecture")]
    assert tuple(head.strip("| ").split(" | ")[2:]) == POOLINGS
    rows = [line for line in table if line.endswith(" | yes" * len(POOLINGS) + " |")]
    assert [row.split("`")[1] for row in rows] == list(FAMILIES)


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float16"},
        {"dtype": "bfloat16"},
        {"truncation_side": "left"},
        {"prompts": {"search": "find "}, "default_prompt_name": "search"},
        {"prompts": {"query": "q ", "document": "", "passage": "p "}},
        {"include_prompt": False},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_settings_of_a_checkpoint_reach_the_exported_encoder(
    settings: dict, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path, **settings)
    encoder = exported(load_encoder(str(checkpoint)), tmp_path / "exported").open_encoder()
    model = SentenceTransformer(str(checkpoint), device="cpu").float()
    model.max_seq_length = MAX_TOKENS
    for role, method in ((Role.QUERY, model.encode_query), (Role.LABEL, model.encode_document)):
        own = np.stack([method(text, normalize_embeddings=True) for text in TEXTS])
        assert encode(encoder, TEXTS, role=role) == pytest.approx(own, abs=2e-6)


# Large graphs ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TorchEncoder:
    return load_encoder(str(write_checkpoint(tmp_path_factory.mktemp("large"))))


def test_a_large_encoder_is_exported_in_int8_and_otherwise_refused_before_it_is_traced(
    encoder: TorchEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is limited to half of the encoder's fp32 size, instead of 2 GiB."""
    for module in (onnx, onnx_graph):
        monkeypatch.setattr(module, "LARGEST_FILE", encoder.size // 2)
    folder = exported(encoder, tmp_path / "int8", quantization="static-int8").folder
    files = {"encoder.onnx", "tokenizer.json", "encoder.json", "README.md"}
    assert {path.name for path in folder.iterdir()} == files
    monkeypatch.delattr("export.encoder.export.trace")
    for quantization in ("none", "int8"):
        with pytest.raises(InvalidInput, match="holds 2 GiB: export it with --quantize"):
            exported(encoder, tmp_path / "large", quantization=quantization)
        assert not (tmp_path / "large").exists()


def test_a_single_weight_that_no_file_holds_is_named(
    encoder: TorchEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "LARGEST_FILE", 1000)
    with pytest.raises(InvalidInput, match=r"a weight of encoder .* holds 2 GiB in one value"):
        onnx.trace(encoder, tmp_path / "encoder.onnx")


def test_a_split_graph_is_read_again_and_never_appended_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_encoder(tmp_path)
    graph = OnnxGraph.read(tmp_path / "encoder.onnx")
    letters = graph.constant("letters")
    monkeypatch.setattr(onnx_graph, "LARGEST_FILE", 1000)
    sizes = set()
    for _ in range(2):
        graph.save(tmp_path / "split.onnx", may_split=True)
        sizes.add((tmp_path / "split.onnx.data").stat().st_size)
        assert np.array_equal(OnnxGraph.read(tmp_path / "split.onnx").constant("letters"), letters)
    assert len(sizes) == 1
    with pytest.raises(InvalidInput, match="a file of ONNX holds 2 GiB"):
        graph.save(tmp_path / "one.onnx")
