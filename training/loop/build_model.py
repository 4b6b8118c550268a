"""Builds what a run trains from its recipe: encoder, texts as tokens, system, optimizers.

Shapes: N training instances, L labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from rich.console import Console
from torch import nn

from service.core.errors import InvalidConfig
from service.core.types import Role
from training.datasets.dataset import Dataset
from training.loop.embedder import BucketedEncoder, Embedder
from training.loop.frozen import FrozenEmbedder
from training.loop.model import TrainedModel
from training.loop.optimizers import Optimizers, make_optimizers
from training.loop.training_data import TrainingData, items_to_read
from training.models.lora import add_adapters
from training.models.ngrams import CharacterNgrams, ngrams_of, untrained_ngrams
from training.models.pooled import PooledEncoder
from training.models.precision import supported_precision
from training.models.sharding import Sharding, sharding_of
from training.models.tokens import TokenTable, concatenate, tokenize
from training.models.torch_encoder import TorchEncoder, load_encoder, set_pooling
from training.models.two_heads import TwoHeads, heads_of, untrained_heads
from training.models.vector_cache import cache_of
from training.models.wise_ft import Mixture
from training.progress import status
from training.recipes.recipe import Recipe
from training.systems.registry import build_system
from training.systems.system import ItemsOfTask, System, Task

_FROZEN_BUCKETS = 16  # times larger, since no transformer's activations are kept
_DIRECTION_TEXTS = 4_096  # from which heads of fewer dimensions learn the main directions


def build_model(
    recipe: Recipe,
    dataset: Dataset,
    data: TrainingData,
    *,
    guide: Callable[..., System],
    source: str,
    console: Console,
) -> TrainedModel:
    """The model of a run before its first step.

    `guide` lets an oracle guide the system, and gives it a teacher's soft labels, if the recipe has
    them. Raises `InvalidConfig` where the recipe leaves nothing to train.
    """
    accelerator = make_accelerator(recipe)
    torch.manual_seed(recipe.seed)
    encoder = trainable_encoder(recipe)
    if recipe.heads.encoder:
        _add_heads(encoder, dataset, recipe)
    mixture = Mixture(pretrained(encoder), recipe.validation.mixing)
    items = items_to_read(recipe, dataset, source=source)
    table = token_table(encoder, dataset, recipe, items=items.texts)
    embedder = make_embedder(encoder, table, recipe, accelerator)
    sharding = sharding_of(accelerator)
    task = _task(dataset, encoder, embedder, data, sharding, items=len(items))
    system = build_system(recipe.system, task, source=source)
    if not embedder.learns and system.head is None:
        raise InvalidConfig(
            f"{source}: encoder.frozen leaves nothing to train; set ngrams.buckets, or take a"
            f" system with classifiers"
        )
    _encode_frozen(embedder, console)
    system = guide(system, dimension=encoder.dimension, source=source, console=console)
    optimizers = _prepare(recipe, embedder, system, sharding, accelerator)
    return TrainedModel(
        encoder=encoder,
        embedder=embedder,
        system=system,
        mixture=mixture,
        optimizers=optimizers,
        accelerator=accelerator,
        instances=data.instances,
        items=len(items),
    )


def _encode_frozen(embedder: Embedder, console: Console) -> None:
    """Encode all texts by a frozen transformer, which is done once."""
    if isinstance(embedder, FrozenEmbedder):
        with status(console, f"encoding {len(embedder.table):,} texts, once"):
            _ = embedder.transformer_vectors


def make_accelerator(recipe: Recipe) -> Accelerator:
    """A single process, or this one of those that `torchrun` started."""
    return Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision=supported_precision(recipe.optimizer.precision).replace("fp32", "no"),
        # A BERT model has a pooling head that is loaded but never used.
        kwargs_handlers=[
            DistributedDataParallelKwargs(find_unused_parameters=True, broadcast_buffers=False)
        ],
    )


def trainable_encoder(recipe: Recipe) -> TorchEncoder:
    """Load the encoder to train, with the recipe's token limit, prompts, pooling and additions."""
    settings, ngrams = recipe.encoder, recipe.ngrams
    encoder = load_encoder(
        settings.name,
        max_tokens=max(settings.query_tokens, settings.label_tokens),
        limited_by="encoder.query_tokens and encoder.label_tokens",
        query_prompt=settings.query_prompt,
        label_prompt=settings.label_prompt,
    )
    if settings.pooling is not None:
        set_pooling(encoder.model, settings.pooling)
    if settings.dropout is not None:
        set_dropout(encoder.model, settings.dropout)
    if recipe.lora.rank:
        add_adapters(encoder.model, recipe.lora)
    if ngrams.buckets and ngrams_of(encoder.model) is None:
        encoder.model.append(untrained_ngrams(encoder.tokenizer, encoder.dimension, ngrams))
    return encoder


def _add_heads(encoder: TorchEncoder, dataset: Dataset, recipe: Recipe) -> None:
    """Append the recipe's heads, unless the checkpoint has some.

    Raises `InvalidConfig` where those of the checkpoint, or the encoder, have other dimensions.
    """
    settings, heads = recipe.heads, heads_of(encoder.model)
    if heads is not None:
        wanted = (settings.encoder, settings.classifier)
        if (heads.encoder, heads.classifier) != wanted:
            raise InvalidConfig(
                f"{encoder.name} has heads of {heads.encoder} and {heads.classifier} dimensions,"
                f" the recipe wants {wanted[0]} and {wanted[1]}"
            )
        return
    most = max(settings.encoder, settings.classifier)
    if most > encoder.dimension:
        raise InvalidConfig(
            f"heads.encoder and heads.classifier may be {encoder.dimension}, the encoder's number"
            f" of dimensions, not {most}"
        )
    texts = dataset.train.instances.texts
    drawn = np.random.default_rng([recipe.seed, 12]).permutation(len(texts))[:_DIRECTION_TEXTS]
    vectors = encoder.encode([texts[row] for row in drawn.tolist()], role=Role.QUERY)
    encoder.model.append(untrained_heads(vectors, settings))


def pretrained(encoder: TorchEncoder) -> nn.ModuleList:
    """The modules with pretrained weights: all but n-grams and heads."""
    return nn.ModuleList(
        module for module in encoder.model if not isinstance(module, CharacterNgrams | TwoHeads)
    )


def learned_modules(encoder: TorchEncoder, recipe: Recipe) -> list[nn.Module]:
    """The modules of a frozen encoder that learn: its n-grams and its heads, if any.

    Heads learn where the recipe has a table `[heads]`; those of a checkpoint stay as they are.
    """
    ngrams = None if recipe.ngrams.frozen else ngrams_of(encoder.model)
    heads = heads_of(encoder.model) if recipe.heads.encoder else None
    return [module for module in (ngrams, heads) if module is not None]


def token_table(
    encoder: TorchEncoder,
    dataset: Dataset,
    recipe: Recipe,
    *,
    queries: Sequence[str] = (),
    items: Sequence[str] = (),
) -> TokenTable:
    """The tokens of all training instances, all labels, further `queries`, and metadata `items`."""
    return concatenate(
        [
            tokenize(encoder.tokenizer, texts, prompt=encoder.prompts[role], max_tokens=tokens)
            for texts, role, tokens in (
                (dataset.train.instances.texts, Role.QUERY, recipe.encoder.query_tokens),
                (dataset.labels.texts, Role.LABEL, recipe.encoder.label_tokens),
                (queries, Role.QUERY, recipe.encoder.query_tokens),
                (items, Role.LABEL, recipe.encoder.label_tokens),
            )
        ]
    )


def make_embedder(
    encoder: TorchEncoder, table: TokenTable, recipe: Recipe, accelerator: Accelerator
) -> Embedder:
    """The encoder over the texts; a frozen one keeps the transformer's vectors."""
    if recipe.ngrams.frozen and not recipe.encoder.frozen:
        raise InvalidConfig("ngrams.frozen requires encoder.frozen = true")
    bucket_tokens = recipe.optimizer.bucket_tokens
    options = {
        "table": table,
        "accelerator": accelerator,
        "padding": int(encoder.tokenizer.pad_token_id or 0),
    }

    def whole(model: nn.Module) -> Embedder:
        module = BucketedEncoder(PooledEncoder(model)).to(accelerator.device)
        return Embedder(module, **options, bucket_tokens=bucket_tokens)

    if not recipe.encoder.frozen:
        return whole(encoder.model)
    modules, learned = list(encoder.model), learned_modules(encoder, recipe)
    first = modules.index(learned[0]) if learned else len(modules)
    for module in modules[first:]:  # those behind the first one that learns are computed anew
        module.requires_grad_(module in learned)
    frozen = nn.Sequential(*modules[:first]) if learned else encoder.model
    # Several processes share the encoding, so none of them makes all that is missing.
    alone = accelerator.num_processes == 1
    precision = supported_precision(recipe.optimizer.precision)
    return FrozenEmbedder(
        nn.Sequential(*modules[first:]),
        whole(frozen),
        cache=cache_of(frozen, precision=precision) if alone else None,
        **options,
        bucket_tokens=_FROZEN_BUCKETS * bucket_tokens,
    )


def _task(
    dataset: Dataset,
    encoder: TorchEncoder,
    embedder: Embedder,
    data: TrainingData,
    sharding: Sharding,
    *,
    items: int,
) -> Task:
    """What the system is built from; `items` is M, 0 where it reads none."""
    texts = np.arange(len(embedder.table))  # those of the embedder
    before = len(texts) - items
    labels = texts[data.instances : before]
    of_items = None
    if items:
        assert dataset.train.metadata_of is not None
        of_items = ItemsOfTask(
            count=items,
            vectors=partial(embedder.vectors, texts[before:]),
            linked=dataset.train.metadata_of,
            rows=data.rows,
        )
    return Task(
        labels=len(labels),
        dimension=encoder.dimension,
        label_vectors=partial(embedder.vectors, labels),
        instance_vectors=partial(embedder.vectors, data.rows),
        labels_of=data.pairs.drawable[data.rows],
        heads=heads_of(encoder.model),
        items=of_items,
        sharding=sharding,
    )


def _prepare(
    recipe: Recipe,
    embedder: Embedder,
    system: System,
    sharding: Sharding,
    accelerator: Accelerator,
) -> Optimizers:
    """The optimizers; wraps the encoder for several processes and moves all to the device."""
    optimizers = make_optimizers(
        embedder.module if embedder.learns else None,
        system.head,
        recipe,
        training_only=system.training_only,
        sharded=system.sharded_parameters,
        sharding=sharding,
    )
    if embedder.learns:
        embedder.module, *optimizers.each = accelerator.prepare(embedder.module, *optimizers.each)
    embedder.module.train(embedder.learns)
    for module in (system.head, system.training_only):
        if module is not None:
            module.to(accelerator.device)
    return optimizers


def set_dropout(model: nn.Module, share: float) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = share
