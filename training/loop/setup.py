"""A run: everything that a recipe, a data set and a folder become before the first step."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from rich.console import Console
from scipy.sparse import csr_matrix, diags
from torch import nn

from service.core.errors import InvalidConfig, InvalidData
from service.core.types import Floats, Role, Rows
from training import systems
from training.datasets.dataset import Dataset
from training.datasets.training_pairs import TrainingPairs
from training.loop import state
from training.loop.embedder import BucketedEncoder, Embedder
from training.loop.frozen import FrozenEmbedder
from training.loop.journal import Journal
from training.loop.optimizers import make_optimizers
from training.loop.refresh import Refresh
from training.loop.state import Found, Parts, Progress
from training.loop.trainer import LAST, Trainer
from training.models.ngrams import CharacterNgrams, ngrams_of, untrained
from training.models.pooled import PooledEncoder
from training.models.precision import supported_precision
from training.models.sharding import sharding_of
from training.models.tokens import joined, tokenize
from training.models.torch_encoder import TorchEncoder, load_encoder
from training.models.wise_ft import Mixture
from training.recipes.recipe import Recipe
from training.selection.validation import Slices, Validation, hidden_labels, hold_out
from training.systems import Task

_BESIDE = 16  # times the tokens of a bucket where no transformer's activations are kept
DEFAULT_TAU = 0.04  # of the memory's retriever, where a system's loss has no temperature


def open_run(
    recipe: Recipe, dataset: Dataset, folder: Path, *, source: str, resume: bool, console: Console
) -> Trainer:
    """Prepare a run, from its last state where `resume` says so.

    Raises `InvalidConfig` for a recipe that does not fit the data, and `InvalidData` for a folder
    that holds another run or, without `resume`, any.
    """
    saved = state.newest(folder / LAST)
    if saved is not None and not resume:
        raise InvalidData(folder, "holds a run already; --resume goes on with it")
    refuse_unmined(recipe, source=source)
    accelerator = make_accelerator(recipe)
    torch.manual_seed(recipe.seed)
    encoder = trainable_encoder(recipe)
    mixture = Mixture(pretrained(encoder), recipe.validation.mixing)
    embedder = make_embedder(encoder, dataset, recipe, accelerator)
    hidden = hidden_labels(dataset, share=recipe.validation.labels, seed=recipe.seed)
    pairs = training_pairs(dataset, hidden)
    slices = training_slices(pairs, recipe, source=source)
    rows = np.intersect1d(slices.kept, pairs.trainable())
    sharding = sharding_of(accelerator)
    system = systems.build(
        recipe.system,
        Task(
            labels=len(dataset.labels),
            dimension=encoder.dimension,
            label_vectors=lambda: label_vectors(embedder, pairs),
            instance_vectors=lambda: embedder.vectors(rows),
            labels_of=pairs.drawable[rows],
            sharding=sharding,
        ),
        source=source,
    )
    trained = embedder.module if embedder.learns else None
    if trained is None and system.own is None:
        raise InvalidConfig(f"{source}: encoder.frozen leaves nothing to learn; set ngrams.buckets")
    if isinstance(embedder, FrozenEmbedder):
        with console.status(f"encoding {len(embedder.table):,} texts, once"):
            _ = embedder.known
    optimizer = make_optimizers(
        trained, system.own, recipe, sparse=system.sparse, sharding=sharding
    )
    if trained is not None:
        embedder.module, *optimizer.each = accelerator.prepare(embedder.module, *optimizer.each)
        embedder.module.train()
    else:
        embedder.module.eval()
    if system.own is not None:
        system.own.to(accelerator.device)
    modules: dict[str, nn.Module] = {"encoder": accelerator.unwrap_model(embedder.module)}
    if system.own is not None:
        modules["own"] = system.own
    parts = Parts(modules=modules, optimizer=optimizer)
    run = run_identity(recipe, dataset)
    progress, found = Progress(), Found()
    if saved is not None:
        progress, found = state.load(saved, run=run, parts=parts)
    journal = Journal(
        folder,
        console=console,
        steps=recipe.optimizer.steps,
        step=progress.step,
        silent=not accelerator.is_main_process,
    )
    return Trainer(
        recipe=recipe,
        run=run,
        folder=folder,
        pairs=pairs,
        rows=rows,
        system=system,
        encoder=encoder,
        embedder=embedder,
        mixture=mixture,
        refresh=Refresh(
            recipe=recipe, pairs=pairs, rows=rows, embedder=embedder, progress=journal.encoded
        ),
        validation=Validation(
            dataset=dataset,
            slices=slices,
            settings=recipe.validation,
            tau=memory_tau(recipe),
            hidden=hidden,
        )
        if len(slices.held_out)
        else None,
        optimizer=optimizer,
        parts=parts,
        accelerator=accelerator,
        journal=journal,
        progress=progress,
        found=found,
    )


def training_pairs(dataset: Dataset, hidden: Rows) -> TrainingPairs:
    """What trains: the clicks of `hidden` labels count for nothing, neither for nor against."""
    train = dataset.train
    if not len(hidden):
        return TrainingPairs(labels_of=train.labels_of, filtered=train.filtered)
    of_hidden = np.zeros(len(dataset.labels), bool)
    of_hidden[hidden] = True
    clicks = csr_matrix(train.labels_of != 0) @ diags(of_hidden.astype(np.float32))
    filtered = csr_matrix(train.filtered.astype(bool) + (clicks != 0))
    return TrainingPairs(labels_of=train.labels_of, filtered=filtered)


def make_accelerator(recipe: Recipe) -> Accelerator:
    """One process, or one of those that `torchrun` started."""
    return Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision=supported_precision(recipe.optimizer.precision).replace("fp32", "no"),
        # A BERT's own pooling head is loaded and never used.
        kwargs_handlers=[
            DistributedDataParallelKwargs(find_unused_parameters=True, broadcast_buffers=False)
        ],
    )


def trainable_encoder(recipe: Recipe) -> TorchEncoder:
    """Load what is to be trained, with the recipe's tokens, prompts, dropout and n-grams."""
    settings, ngrams = recipe.encoder, recipe.ngrams
    encoder = load_encoder(
        settings.name,
        max_tokens=max(settings.query_tokens, settings.label_tokens),
        query_prompt=settings.query_prompt,
        label_prompt=settings.label_prompt,
    )
    if settings.dropout is not None:
        _set_dropout(encoder.model, settings.dropout)
    if ngrams.buckets and ngrams_of(encoder.model) is None:
        encoder.model.append(untrained(encoder.tokenizer, encoder.dimension, ngrams))
    return encoder


def pretrained(encoder: TorchEncoder) -> nn.ModuleList:
    """The modules that know something already: all but the n-grams."""
    return nn.ModuleList(part for part in encoder.model if not isinstance(part, CharacterNgrams))


def _set_dropout(model: nn.Module, share: float) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = share


def make_embedder(
    encoder: TorchEncoder, dataset: Dataset, recipe: Recipe, accelerator: Accelerator
) -> Embedder:
    """The encoder over all training instances, then all labels."""
    tables = [
        tokenize(encoder.tokenizer, texts, prompt=encoder.prompts[role], max_tokens=tokens)
        for texts, role, tokens in (
            (dataset.train.instances.texts, Role.QUERY, recipe.encoder.query_tokens),
            (dataset.labels.texts, Role.LABEL, recipe.encoder.label_tokens),
        )
    ]
    how: dict[str, Any] = {
        "table": joined(tables),
        "accelerator": accelerator,
        "padding": int(encoder.tokenizer.pad_token_id or 0),
        "budget": recipe.optimizer.bucket_tokens,
    }

    def whole(model: nn.Module) -> Embedder:
        module = BucketedEncoder(PooledEncoder(model)).to(accelerator.device)
        return Embedder(module, **how)

    if not recipe.encoder.frozen:
        if recipe.ngrams.frozen:
            raise InvalidConfig("ngrams.frozen goes with encoder.frozen")
        return whole(encoder.model)
    ngrams = None if recipe.ngrams.frozen else ngrams_of(encoder.model)
    still = encoder.model if ngrams is None else nn.Sequential(*pretrained(encoder))
    wider = {**how, "budget": _BESIDE * recipe.optimizer.bucket_tokens}
    return FrozenEmbedder(ngrams, whole(still), **wider)


def label_vectors(embedder: Embedder, pairs: TrainingPairs) -> Floats:
    """The present encoder's label vectors, [L, d]."""
    instances = pairs.labels_of.shape[0]
    return embedder.vectors(np.arange(instances, instances + pairs.labels))


def training_slices(pairs: TrainingPairs, recipe: Recipe, *, source: str) -> Slices:
    """Hold rows out; raises `InvalidConfig` where too little is left for a batch."""
    trainable = pairs.trainable()
    slices = hold_out(
        trainable,
        total=pairs.labels_of.shape[0],
        count=recipe.validation.rows,
        seed=recipe.seed,
    )
    left = len(trainable) - len(slices.held_out)
    if left < 2:
        raise InvalidConfig(f"{source}: {left} labelled training rows are left; two are needed")
    return slices


def refuse_unmined(recipe: Recipe, *, source: str) -> None:
    """Raise `InvalidConfig` where hard negatives are wanted and would never be mined."""
    refresh = recipe.refresh
    if recipe.batch.hard_negatives and not (
        refresh.every and refresh.first < recipe.optimizer.steps
    ):
        raise InvalidConfig(
            f"{source}: batch.hard_negatives needs refresh.every above 0 and refresh.first below"
            f" optimizer.steps, or none is ever mined"
        )


def memory_tau(recipe: Recipe) -> float:
    """The memory's temperature: the loss's where it has one."""
    if recipe.system["name"] in ("rae", "dual-encoder"):
        return float(recipe.system.get("tau", DEFAULT_TAU))
    return DEFAULT_TAU


def run_identity(recipe: Recipe, dataset: Dataset) -> str:
    """SHA-256 over the recipe and all that is trained on."""
    digest = hashlib.sha256(orjson.dumps(asdict(recipe), option=orjson.OPT_SORT_KEYS))
    for texts in (dataset.train.instances, dataset.labels):
        for text in texts.texts:
            digest.update(text.encode() + b"\0")
    for matrix in (dataset.train.labels_of, dataset.train.filtered):
        digest.update(np.ascontiguousarray(matrix.indptr, np.int64).data)
        digest.update(np.ascontiguousarray(matrix.indices, np.int64).data)
    return digest.hexdigest()
