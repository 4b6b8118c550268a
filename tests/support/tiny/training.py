"""A checkpoint and a data set small enough to train in a test, and training runs with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson
from rich.console import Console
from safetensors.numpy import load_file
from scipy.sparse import csr_matrix

from tests.support.commands import status_of
from tests.support.tiny.encoder import VOCABULARY, tiny_tokenizer
from training.datasets.dataset import Dataset, Split, Texts

if TYPE_CHECKING:
    from training.loop.trainer import Trainer

DIMENSION = 32
RECIPE = """
[encoder]
name = "{model}"
[batch]
instances = 16
[optimizer]
steps = 4
learning_rate = 1e-3
precision = "fp32"
[validation]
rows = 8
every = 2
[system]
name = "{system}"
"""
ADJECTIVES = ("red", "green", "blue", "black", "white", "small", "large", "cheap")
NOUNS = ("tent", "boots", "lamp", "stove", "bottle", "jacket", "rope", "knife")


def train_tiny(folder: Path, name: str, *settings: str, recipe: str = "ngame") -> int:
    """Train a recipe in `folder` on its data, into its folder `name`; return the exit status."""
    from training.__main__ import app

    places = ("--data", folder / "data", "--out", folder / name)
    given = ("--set", *settings) if settings else ()
    return status_of(app, "train", folder / f"{recipe}.toml", *places, *given)


def write_tiny_checkpoint(
    folder: Path, *, dropout: float = 0.1, seed: int = 0, layers: int = 1
) -> Path:
    """Write a BERT over letters, with one or more layers, as a sentence-transformers folder."""
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=DIMENSION,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * DIMENSION,
        max_position_embeddings=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    plain = folder / "plain"
    BertModel(config).save_pretrained(plain)
    PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(),
        unk_token="[UNK]",
        pad_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(plain)
    model = SentenceTransformer(str(plain), device="cpu")  # adds mean pooling
    model.max_seq_length = 32
    model.save(str(folder / "model"), create_model_card=False)
    return folder / "model"


def write_tiny_language_model(
    folder: Path, *, family: str = "llama", dtype: str = "float32"
) -> Path:
    """Write a causal language model over letters, with two layers and no padding token.

    `family` is "llama" or "gpt2". The result is a plain Hugging Face folder.
    """
    import torch
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    torch.manual_seed(0)
    size = len(VOCABULARY)
    if family == "llama":
        config = LlamaConfig(
            vocab_size=size,
            hidden_size=DIMENSION,
            intermediate_size=2 * DIMENSION,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
        )
        model = LlamaForCausalLM(config)
    else:
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=size, n_embd=DIMENSION, n_layer=2, n_head=2, n_positions=64)
        )
    model.to(getattr(torch, dtype)).save_pretrained(folder / family)
    PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(), unk_token="[UNK]", eos_token="[SEP]"
    ).save_pretrained(folder / family)
    return folder / family


def tiny_dataset(*, seed: int = 0) -> Dataset:
    """48 training and 16 test rows: a query "red tent" is clicked for "red" and "tent"."""
    labels = (*ADJECTIVES, *NOUNS)
    pairs = [(first, second) for first in ADJECTIVES for second in NOUNS]
    order = np.random.default_rng(seed).permutation(len(pairs))

    def split(rows: np.ndarray) -> Split:
        texts = tuple(" ".join(pairs[row]) for row in rows)
        y = np.array([[label in pairs[row] for label in labels] for row in rows], np.float32)
        nothing = csr_matrix((len(rows), len(labels)), dtype=bool)
        return Split(
            instances=Texts(uids=texts, texts=texts), labels_of=csr_matrix(y), filtered=nothing
        )

    return Dataset(
        name="colours",
        train=split(order[:48]),
        test=split(order[48:]),
        labels=Texts(uids=labels, texts=labels),
        fields=("title",),
    )


def with_colour_metadata(dataset: Dataset) -> Dataset:
    """Add an item, such as "is red", to each adjective; nouns have no metadata."""

    def of_texts(texts: Texts) -> csr_matrix:
        rows = [[word in text.split() for word in ADJECTIVES] for text in texts.texts]
        return csr_matrix(np.array(rows, np.float32))

    return replace(
        dataset,
        train=replace(dataset.train, metadata_of=of_texts(dataset.train.instances)),
        test=replace(dataset.test, metadata_of=of_texts(dataset.test.instances)),
        label_metadata=of_texts(dataset.labels),
        metadata=Texts(uids=ADJECTIVES, texts=tuple(f"is {word}" for word in ADJECTIVES)),
    )


LOOP_RECIPE = """
[encoder]
name = "{model}"
[batch]
instances = 16
positives = 2
[optimizer]
steps = 8
learning_rate = 5e-3
precision = "fp32"
[validation]
rows = 8
every = 4
depth = 20
[system]
name = "{system}"
"""


def write_recipe(folder: Path, *, model: Path, system: str = "rae") -> Path:
    """Write a recipe of eight steps that validates every four steps."""
    recipe = folder / f"{system}.toml"
    recipe.write_text(LOOP_RECIPE.format(model=model, system=system))
    return recipe


def open_tiny_run(
    recipe: Path,
    folder: Path,
    *changes: str,
    resume: bool = False,
    dataset: Dataset | None = None,
    console: Console | None = None,
) -> Trainer:
    """Open a run on the tiny data set, without the command line and its final choices."""
    from training.loop.setup import open_run
    from training.recipes import recipe as recipes

    return open_run(
        recipes.load(str(recipe), changes),
        dataset or tiny_dataset(),
        folder,
        source=recipe.name,
        resume=resume,
        console=console or Console(quiet=True),
    )


def losses(run: Path) -> list[float]:
    """Return the loss of each step."""
    lines = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def last_weights(run: Path) -> dict[str, np.ndarray]:
    """Return the weights of a run's last saved state."""
    return load_file(run / "last" / "weights.safetensors")
