"""For each architecture and pooling, exported vectors equal those of sentence-transformers."""

import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402

from export.encoder.export import (  # noqa: E402
    EncoderOptions,
    export_encoder,
    facts,
    save_tokenizer,
)
from export.encoder.onnx import trace  # noqa: E402
from export.encoder.parity import Tolerance  # noqa: E402
from export.encoder.quantize import QUANTIZATIONS, quantize  # noqa: E402
from service.core.encoding.encoder import OnnxEncoder, encode  # noqa: E402
from service.core.types import Floats, Role  # noqa: E402
from tests.support.tiny.checkpoints import (  # noqa: E402
    FAMILIES,
    MAX_TOKENS,
    POOLINGS,
    write_checkpoint,
)
from tests.support.tiny.training import tiny_dataset  # noqa: E402
from training.models.torch_encoder import load_encoder  # noqa: E402

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
    quantize(graph, folder / graph.name, QUANTIZATIONS["static-int8"], calibration=tokens)
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
        {"include_prompt": False},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_settings_of_a_checkpoint_reach_the_exported_encoder(
    settings: dict, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path, **settings)
    encoder = export_encoder(
        load_encoder(str(checkpoint)),
        tiny_dataset(),
        tmp_path / "exported",
        options=EncoderOptions(quantization="none", parity_sample=40, threads=1),
        console=Console(quiet=True),
    ).open_encoder()
    model = SentenceTransformer(str(checkpoint), device="cpu").float()
    model.max_seq_length = MAX_TOKENS
    own = np.stack([model.encode(text, normalize_embeddings=True) for text in TEXTS])
    for role in (Role.QUERY, Role.LABEL):
        assert encode(encoder, TEXTS, role=role) == pytest.approx(own, abs=2e-6)
